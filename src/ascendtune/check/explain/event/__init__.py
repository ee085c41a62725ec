"""Which failures happened, and which did the job survive? Lines as events, each with its known failure."""
