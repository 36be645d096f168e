"""REST and server-sent events: the door for programs and browsers. Decides nothing itself."""
