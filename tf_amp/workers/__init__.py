"""Jobs of several processes: servers, workers that train together, and their plans."""
