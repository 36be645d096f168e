"""The one place with SQL: tables, one module per noun with its queries, migrations, backup."""
