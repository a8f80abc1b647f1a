"""fairseq before 0.10: means since the epoch began, behind `| epoch 001:`.

The loss is in bits. `| epoch 001 | loss ..` is the mean of an epoch and no new step.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="fairseq-old",
    lines=(
        Line(
            r"(?<!train_inner\s)\| epoch <epoch>:(?=.{0,200}\bloss=.{0,600}\bnum_updates=<step>,)",
            pairs=":",
            mark="num_updates=",
        ),
        Line(
            r'^ \{"epoch": \d+, "update": <update>, (?=.*"num_updates": "?<step>[",])',
            pairs=":",
            mark='"num_updates"',
        ),
        Line(
            r"\| valid on '\w*' subset \|(?=.{0,1000}\bnum_updates <step>)",
            pairs=" ",
            mark=" subset | ",
            names={"loss": "eval_loss", "valid_loss": "eval_loss"}
            | {"nll_loss": "valid_nll_loss", "ppl": "valid_ppl"},
            claims=False,
        ),
        Line(
            r'^ \{"epoch": \d+, (?=.*"valid_num_updates": "?<step>[",}])',
            pairs=":",
            mark='"valid_num_updates"',
            claims=False,
        ),
    ),
    aliases={"gnorm": "grad_norm", "update": "epoch"}
    | dict.fromkeys(("num_updates", "valid_num_updates", "best_loss", "valid_best_loss"), "")
    | dict.fromkeys(("wps", "ups", "wpb", "bsz", "oom", "wall"), ""),
    facts={"loss_kind": "falling", "loss_form": "running mean", "loss_base": "bits"},
    from_zero=False,
    sample="""| epoch 001:    100 / 1500 loss=12.250, nll_loss=12.125, ppl=4467.00, wps=9000, \
ups=4.5, wpb=2000, bsz=64, num_updates=101, lr=1.25e-05, gnorm=3.500, clip=0%, oom=0, wall=25
| WARNING: overflow detected, setting loss scale to: 64.0
| epoch 001:    200 / 1500 loss=11.500, nll_loss=11.250, ppl=2435.50, wps=9000, \
ups=4.5, wpb=2000, bsz=64, num_updates=201, lr=2.5e-05, gnorm=2.500, clip=0%, oom=0, wall=50
| epoch 001 | loss 10.875 | nll_loss 10.625 | ppl 1579.00 | num_updates 1500 | lr 0.0001875
| epoch 001 | valid on 'valid' subset | valid_loss 10.25000 | valid_ppl 1217.75 | num_updates 1500
""",
).reader
