"""Trust: which repositories may have something executed, and with what."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from kapelle.api.security import UseCases, owner_only
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import TrustView

router = APIRouter(prefix="/trust", tags=["trust"], dependencies=[Depends(owner_only)])

_ABSOLUTE = r"^/[^\x00]*$"
_DIRECTORY = Query(max_length=4000, pattern=_ABSOLUTE)


class TrustBody(Spec):
    """A directory of the repository and, so that nothing else is trusted, the digest of what was
    looked at."""

    directory: Annotated[Text, Field(max_length=4000, pattern=_ABSOLUTE)]
    digest: Annotated[Text | None, Field(max_length=64)] = None


@router.get("")
async def known(
    service: UseCases, directory: Annotated[str | None, _DIRECTORY] = None
) -> list[TrustView]:
    """Every repository that was trusted once; with a directory that of its own, trusted or not."""
    return await service.trust.known(directory)


@router.post("")
async def grant(body: TrustBody, service: UseCases) -> TrustView:
    """Let a repository execute what stands in its .kapelle now; a change there ends that."""
    return await service.trust.grant(body.directory, body.digest)


@router.delete("")
async def withdraw(directory: Annotated[str, _DIRECTORY], service: UseCases) -> TrustView:
    """Trust a repository no more."""
    return await service.trust.withdraw(directory)
