"""Browser sessions: a one-time code becomes a cookie."""

from typing import Annotated

from fastapi import APIRouter, Cookie, Depends, Response

from kapelle.api.security import COOKIE, UseCases, owner_only
from kapelle.domain.specs import Spec, Text
from kapelle.service.sessions import SESSION_LIFE_S

router = APIRouter(tags=["logins"])


class LoginBody(Spec):
    code: Text


@router.post("/login", status_code=204)
async def log_in(body: LoginBody, service: UseCases) -> Response:
    """Exchange a code for a session cookie."""
    response = Response(status_code=204)
    session = service.sessions.log_in(body.code)
    response.set_cookie(
        COOKIE, session, int(SESSION_LIFE_S), httponly=True, samesite="strict", path="/"
    )
    return response


@router.post("/logout", status_code=204, dependencies=[Depends(owner_only)])
async def log_out(
    service: UseCases, session: Annotated[str, Cookie(alias=COOKIE, max_length=200)] = ""
) -> Response:
    """End the session of this cookie."""
    service.sessions.log_out(session)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response
