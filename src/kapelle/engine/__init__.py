"""What starts when, and what is done from then on: tasks, runs, schedules, and upkeep."""
