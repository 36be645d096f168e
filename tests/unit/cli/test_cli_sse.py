from kapelle.client.http import parse
from kapelle.client.protocol import ServerEvent


def read(text: str) -> list[ServerEvent]:
    return list(parse(text.encode().splitlines(keepends=True)))


def test_events_with_ids_and_comments() -> None:
    stream = ': ping\n\nid: 7\nevent: text\ndata: {"text": "a"}\n\nevent: end\ndata: {}\n\n'
    assert read(stream) == [
        ServerEvent("text", {"text": "a"}, "7"),
        ServerEvent("end", {}, "7"),
    ]


def test_data_over_several_lines_and_windows_line_ends() -> None:
    assert read('data: {"text":\r\ndata: "a"}\r\n\r\n') == [
        ServerEvent("message", {"text": "a"}, None)
    ]


def test_an_event_cut_off_is_dropped() -> None:
    assert read('event: text\ndata: {"text": "a"}\n') == []


def test_data_that_is_no_object_is_kept() -> None:
    assert read("data: hello\n\ndata: 5\n\n") == [
        ServerEvent("message", {"text": "hello"}, None),
        ServerEvent("message", {"value": 5}, None),
    ]
