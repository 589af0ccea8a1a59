"""Would mixed precision pay on another device, and what holds it back there."""
