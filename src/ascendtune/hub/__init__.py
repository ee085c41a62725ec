"""Where do models and data sets come from? Local directories, and hubs that speak Hugging Face's protocol."""
