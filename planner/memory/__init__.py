"""Memory of one GPU over a training step, in plain Python and exact to the tensor."""
