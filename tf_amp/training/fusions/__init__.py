"""What Keras 3 writes in many operations, traced as one kernel of TensorFlow."""
