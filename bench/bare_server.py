"""The least that FastAPI and uvicorn can do: one constant. `python -m bench.bare_server SOCKET`."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/constant")
async def constant() -> dict[str, str]:
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(app, uds=sys.argv[1], log_level="error", access_log=False)
