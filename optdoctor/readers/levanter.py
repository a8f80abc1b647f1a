"""levanter: a progress bar written to the log, its step in thousands from 1.00kit on."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="levanter",
    lines=(
        Line(
            r"\bProgress on:train (?P<step>\d[\d.]*[kMG]?)it/(?P<total>\d[\d.]*[kMG]?)it\b"
            r".{0,1000}?\bpostfix:.{0,400}?\bloss=<loss>",
            mark="Progress on:train",
        ),
        Line(r"\b(?:eval|validation) loss: <eval_loss>", mark=" loss: ", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_base": "nats"},
    from_zero=False,
    sample="""2026-01-02T03:04:05 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: \
Progress on:train 1.00it/9.00kit rate:38.3s/it remaining:95:44:41 elapsed:00:38 postfix:loss=11.2
2026-01-02T03:04:15 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: \
Progress on:train 30.0it/9.00kit rate:3.1it/s remaining:48:13 elapsed:00:48 postfix:loss=9.75
2026-01-02T03:14:25 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: \
Progress on:train 1.92kit/9.00kit rate:3.1it/s remaining:38:13 elapsed:10:48 postfix:loss=4.25
""",
).reader
