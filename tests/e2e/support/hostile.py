"""200 texts that mean harm to whoever shows them: script, terminals, directions, sizes."""

_PAYLOADS = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>", "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "</title><script>alert(1)",
    "<style>*{display:none}</style>", "<base href=//127.0.0.1:1/>", "<form action=//127.0.0.1:1>",
    "<math><mtext><img src=x onerror=alert(1)>", "<!--<img src=x onerror=alert(1)>-->",
    "[l](javascript:alert(1))", "![i](http://127.0.0.1:1/x.png)",
    "<details open ontoggle=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}", "${alert(1)}", "';alert(1)//",
    '"onfocus="alert(1)',
    "&lt;script&gt;alert(1)&lt;/script&gt;", "`<b>`**<i>**", "%3Cscript%3Ealert(1)%3C/script%3E",
    "\u001b[31mred\u001b[0m", "\u001b]0;title\u0007", "\u001b[2J\u001b[H",
    "\u001b]8;;javascript:a\u0007l",
    "\u009b31m", "\u0000nul", "\u0007\b\r\v\f", "\u202egnp.exe", "\u2066iso\u2069\u202dlro",
    "zero\u200bwidth\u200d\u2060", "\ufeffbom", "a\u0300\u0301\u0302\u0303" * 40, "W" * 5_000,
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 abc \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 30,
    "/" * 900, "wide \uff37\uff29\uff24\uff25 " * 40,
)  # fmt: skip
_FRAMES = ("{0}", "x {0} y", "{0} {0}", '"{0}', "# {0}\n\n- {0}")
# Each text in each frame: what begins a line and what stands amid words is told apart by some.
HOSTILE = [frame.format(text) for frame in _FRAMES for text in _PAYLOADS]
assert len(HOSTILE) == 200
