"""What is asked for? The recipe: what to train and how, read, checked and translated. Free of torch."""
