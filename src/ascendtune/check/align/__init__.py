"""Do two machines train the same model? Two records of training are compared stage by stage."""
