"""What does the user type, and what is printed? One file per command; only this room prints."""
