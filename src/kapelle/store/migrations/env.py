"""Alembic's entry: runs on the connection that kapelle.store.migrate hands over."""

from alembic import context

from kapelle.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
