"""A task from submission to end: submit, queue, executor; its phases are modules of their names."""
