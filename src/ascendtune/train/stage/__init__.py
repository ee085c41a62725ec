"""What is learnt? One objective per stage."""
