"""Where do models and data sets come from? Local directories, and hubs with Hugging Face's protocol."""
