"""Prints the OpenAPI document: `make docs` commits it, a test compares it."""

import json

from kapelle.api.app import routes


def document() -> str:
    return json.dumps(routes().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(document(), end="")
