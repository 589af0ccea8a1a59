"""What runs in the process that measures one method, and what it writes down."""
