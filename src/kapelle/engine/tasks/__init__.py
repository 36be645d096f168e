"""A task from submission to end: submit, queue, attempt (prepare, launch, watch, verify, settle)"""
