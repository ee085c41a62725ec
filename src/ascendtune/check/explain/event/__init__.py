"""What happened, and did the job outlive it? Lines as events, each with what is known of it."""
