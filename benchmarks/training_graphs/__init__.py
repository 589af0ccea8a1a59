"""Training steps of published models as graphs: random weights, never executed."""
