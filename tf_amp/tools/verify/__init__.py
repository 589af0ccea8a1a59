"""Whether the numbers hold: a rewritten graph beside float32, and the culprits."""
