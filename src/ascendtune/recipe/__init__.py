"""What should be trained, and how? The recipe: read, checked and translated. Free of torch."""
