"""How the processes of agents and checks are made, and how their results are judged."""
