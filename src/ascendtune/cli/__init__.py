"""What did the user say, and what does the user read? One file per command; only this room prints."""
