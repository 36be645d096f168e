"""HTTP as uvicorn reads it, except that a request it cannot read gets an answer like any other."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kapelle.api.errors import error_response
from kapelle.api.security_headers import SECURITY_HEADERS


class Protocol(H11Protocol):
    def send_400_response(self, msg: str) -> None:
        # An answer that has begun cannot be taken back.
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error_response(400, "bad_request", msg)
            response.headers.update({**SECURITY_HEADERS, "Connection": "close"})
            head = h11.Response(status_code=400, headers=response.raw_headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
