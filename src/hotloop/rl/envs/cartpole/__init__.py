"""CartPole with Gymnasium's dynamics to the last bit, many at a time."""
