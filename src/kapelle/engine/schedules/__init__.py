"""When what is due: slots of schedules, and starting what belongs to them."""
