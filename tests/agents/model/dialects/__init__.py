"""The wire formats that coding agents speak, one a file."""

from tests.agents.model.dialects.answer import Dialect
from tests.agents.model.dialects.anthropic import Anthropic
from tests.agents.model.dialects.chat import Chat
from tests.agents.model.dialects.gemini import Gemini
from tests.agents.model.dialects.responses import Responses

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (Anthropic(), Responses(), Chat(), Gemini())
}
