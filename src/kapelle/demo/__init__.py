"""`kapelle demo`: a small ensemble of rehearsal agents, conducted through Kapelle's own doors."""
