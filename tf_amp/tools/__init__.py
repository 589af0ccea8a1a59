"""What works on models and graphs at hand: convert, verify, explain, audit."""
