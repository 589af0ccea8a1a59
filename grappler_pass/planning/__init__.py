"""From estimated costs to a type for each part of a graph."""
