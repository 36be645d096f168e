"""Browser sessions: a one-time code becomes a cookie."""

from fastapi import APIRouter, Depends, Request, Response

from kapelle.api.security import UseCases, cookie_name, owner_only
from kapelle.domain.specs import Spec, Text
from kapelle.service.sessions import SESSION_LIFE_S

router = APIRouter(tags=["logins"])


class LoginBody(Spec):
    code: Text


@router.post("/login", status_code=204)
async def log_in(body: LoginBody, service: UseCases, request: Request) -> Response:
    """Exchange a code for a session cookie."""
    response = Response(status_code=204)
    session = service.sessions.log_in(body.code)
    response.set_cookie(
        cookie_name(request),
        session,
        int(SESSION_LIFE_S),
        # Out of reach of scripts and of other sites.
        httponly=True,
        samesite="strict",
        path="/",
    )
    return response


@router.post("/logout", status_code=204, dependencies=[Depends(owner_only)])
async def log_out(service: UseCases, request: Request) -> Response:
    """End the session of this cookie, and the terminals that it has open."""
    name = cookie_name(request)
    service.sessions.log_out(request.cookies.get(name, ""))
    response = Response(status_code=204)
    response.delete_cookie(name, path="/")
    return response
