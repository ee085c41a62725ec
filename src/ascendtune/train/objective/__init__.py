"""What is minimised? One objective per stage; each is a module that turns a micro-batch into a summed loss."""
