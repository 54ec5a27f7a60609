"""Short trainings that find the learning rate of each arm, see notebooks/04_pilot.ipynb."""
