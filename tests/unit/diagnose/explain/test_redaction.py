"""Redaction: what must not be shown is not there, and what a reader needs is."""

import random
import re
import string

import pytest

from paceline.diagnose.explain.redaction import Known, Redactor

KNOWN = Known(
    secrets=("correct horse battery staple", "s3cr3t-value"),
    users=("alovelace", "Ada Lovelace"),
    homes=("/cluster/home/alovelace",),
    hosts=("titan", "titan.cs.example.edu"),
)
# Made here, so that no scanner of this repository takes them for real ones.
LETTERS = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA"
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f001234567"
PRIVATE_KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"

SECRETS = {
    "variable": ("HF_TOKEN=abcdefgh1", "abcdefgh1"),
    "exported": ("export WANDB_API_KEY='abc def gh'", "abc def gh"),
    "Slurm's export": ("--export=ALL,DB_PASSWORD=hunter2", "hunter2"),
    "short for password": ("export DB_PASS=hunter2", "hunter2"),
    "a service's key": ("WANDB_KEY=hunter2 python train.py", "hunter2"),
    "lower case": ("db_password: hunter2", "hunter2"),
    "option": ("train.py --api-key hunter2 --lr 0.1", "hunter2"),
    "option with =": ("train.py --api_key=hunter2 --lr 0.1", "hunter2"),
    "list of words": ('["train.py", "--password", "hunter2", "--lr"]', "hunter2"),
    "list on lines": ('"--password",\n  "hunter2",\n', "hunter2"),
    "dictionary": ("{'token': 'hunter2', 'lr': 0.1}", "hunter2"),
    "JSON": ('{"aws_secret_access_key": "hunter/2+"}', "hunter/2+"),
    "JSON in JSON": ('{"line": "{\\"secret\\": \\"hunter2\\"}"}', "hunter2"),
    "namespace": ("Namespace(lr=0.1, password=hunter2, epochs=3)", "hunter2"),
    "dotted": ("logger.wandb.api_key=hunter2", "hunter2"),
    "brackets": ("os.environ['MY_SECRET'] = 'hunter2'", "hunter2"),
    "connection": ("Server=db;Uid=ada;Pwd=hunter2;", "hunter2"),
    "passphrase": ("ssh-add: passphrase = 'open sesame now'", "open sesame now"),
    "address with a password": ("postgres://ada:hunter2@db:5432/runs", "ada:hunter2"),
    "address with a token": (f"https://{LETTERS[:20]}@github.com/a/b.git", LETTERS[:20]),
    "signed address": ("GET /f?X-Amz-Signature=abcdef0123&v=2", "abcdef0123"),
    "query": ("https://x.org/a?sig=abcd%2Befg%3D&v=2", "abcd%2Befg%3D"),
    "bearer": ("> Authorization: Bearer abc.def-123", "abc.def-123"),
    "bearer alone": ("sent Bearer abcdef123456", "abcdef123456"),
    "authorization in JSON": ('{"Authorization": "token abcdefg"}', "abcdefg"),
    "cookie": ("Set-Cookie: session=abcdef; Path=/", "session=abcdef"),
    "netrc": ("machine api.wandb.ai login user password abcdefgh", "abcdefgh"),
    "Hugging Face": (f"logged in with hf_{LETTERS}", LETTERS),
    "GitHub": (f"cloned by ghp_{LETTERS}", LETTERS),
    "GitHub, new": (f"cloned by github_pat_{LETTERS}", LETTERS),
    "GitLab": (f"cloned by glpat-{LETTERS[:20]}", LETTERS[:20]),
    "OpenAI": (f"used sk-proj-{LETTERS}", LETTERS),
    "Slack": ("posted by xoxb-1234-5678-abcdef", "1234-5678"),
    "Slack's hook": ("https://hooks.slack.com/services/T0/B0/abcdef", "T0/B0/abcdef"),
    "AWS": ("used AKIA" + "IOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    "Google": ("used AIza" + (LETTERS + "abc"), LETTERS),
    "NVIDIA": (f"docker login -p nvapi-{LETTERS}", LETTERS),
    "web token": ("sent eyJhbGciOi.eyJzdWIiOi.SflKxwRJ", "eyJzdWIiOi"),
    "wandb's key": (f"wandb login {HEX}", HEX),
    "a key alone": (f"key is {HEX} now", HEX),
    "random": (f"found {LETTERS} there", LETTERS),
    "coloured": (f"\x1b[32mhf_{LETTERS}\x1b[0m", LETTERS),
    "private key": (
        f"-----BEGIN RSA PRIVATE KEY-----\n{PRIVATE_KEY}\nabc=\n-----END RSA PRIVATE KEY-----",
        PRIVATE_KEY,
    ),
    "private key in JSON": (
        f'"-----BEGIN PRIVATE KEY-----\\n{PRIVATE_KEY}\\n-----END PRIVATE KEY-----\\n"',
        PRIVATE_KEY,
    ),
    "private key, its end": (f"[rank0]: {PRIVATE_KEY}\n[rank0]: done", PRIVATE_KEY),
    "known value": ("it is s3cr3t-value, quoted nowhere", "s3cr3t-value"),
    "known value with blanks": ("say correct horse battery staple twice", "correct horse"),
}


def redacted(text, known=KNOWN):
    redactor = Redactor(known)
    redactor.learn([text])
    return redactor.redact(text)


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_replaced(text, secret):
    result = redacted(text)
    assert secret not in result
    assert "<secret-1>" in result


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_replaced_in_the_middle_of_a_log(text, secret):
    log = f"[rank3]: step 12 loss 0.25\n[rank3]: {text}\n[rank3]: KeyError: 'labels'\n"
    result = redacted(log)
    assert secret not in result
    assert result.startswith("[rank3]: step 12 loss 0.25\n")


KEPT = [
    "RuntimeError: CUDA error: device-side assert triggered",
    "tokens_per_batch: 4096, num_tokens=12, max_token_length=512",
    "TOKENIZERS_PARALLELISM=false",
    "pad_token='<pad>' eos_token_id: 50256",
    "password=None, token='', secret: null",
    "HF_TOKEN is not set",
    "#running-req: 4, #token: 1234, token usage: 0.01",
    "error NET033 run-secret-differs: this node was not given the run's secret",
    "--secret-file run.secret on every node",
    "token = os.environ['HUB_TOKEN']",
    "export WANDB_API_KEY=$WANDB_API_KEY HF_TOKEN=${HF_TOKEN}",
    "#SBATCH --signal=B:TERM@60",
    "--rdzv-backend c10d needs --rdzv-endpoint: without it each node waits",
    "unset RANK MASTER_ADDR MASTER_PORT; MASTER_PORT is 29500",
    "PWD=/data/project",
    "bound to 127.0.0.1:29500, ::1 and 0.0.0.0",
    "nvidia-cublas-cu12 12.4.5.8, cuDNN version 9.1.0.70, x==1.2.3.4",
    "NCCL version 2.21.5+cuda12.4",
    f"commit {HEX}",
    f'"sha256": "{HEX}"',
    "0000:3b:00.0 GPU at 12:34:56",
    "c10::Error at c10d::ProcessGroupNCCL::WorkNCCL",
    "_ZN3c104cuda20CUDACachingAllocator9allocatorE3abc4DEF5ghi6JKL",
    'File "/opt/torch/nn/parallel/distributed.py", line 1623, in forward',
    "torch.nn.parallel.DistributedDataParallelStrategyWithGradientBuckets",
    "module.encoder.layers.11.self_attn.in_proj_weight",
    "https://docs.pytorch.org/docs/stable/elastic/run.html",
    "rank 3: signature: (Tensor input, *, int dim)",
    "7e1f2a3b-1234-4abc-9def-0123456789ab",
    "train.py --lr 0.1 --epochs 3",
    "--first-passes 3 forward_pass=12.5 sort_key=length",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_explains_a_failure_is_kept(text):
    assert redacted(text) == text


def test_the_same_value_has_the_same_label():
    redactor = Redactor(KNOWN)
    first = redactor.redact("API_KEY=hunter2 from 10.0.0.7 and 10.0.0.8")
    second = redactor.redact("10.0.0.8 sent password=hunter2, not password=other")
    assert first == "API_KEY=<secret-1> from <address-1> and <address-2>"
    assert second == "<address-2> sent password=<secret-1>, not password=<secret-2>"
    assert dict(redactor.counts) == {"secret": 3, "address": 3}


def test_a_password_in_one_text_is_replaced_in_all():
    redactor = Redactor(KNOWN)
    texts = ["logged in: pa55word", "train.py --password pa55word", "token: required here"]
    redactor.learn(texts)
    assert redactor.redact(texts[0]) == "logged in: <secret-1>"
    assert redactor.redact("a login is required") == "a login is required"
    assert dict(redactor.counts) == {"secret": 1}


@pytest.mark.parametrize(
    "text", ['said pa"ss\\wörd', '{"said": "pa\\"ss\\\\w\\u00f6rd"}', "said pa%22ss%5Cw%C3%B6rd"]
)
def test_a_known_secret_is_found_in_json_and_in_addresses(text):
    redactor = Redactor(Known(secrets=('pa"ss\\wörd',)))
    assert redactor.redact(text) == re.sub(r"pa\S+rd", "<secret-1>", text)


def test_a_name_outside_ascii_is_found_in_json():
    redactor = Redactor(Known(users=("José García",), homes=("/cluster/josé",)))
    text = '{"who": "Jos\\u00e9 Garc\\u00eda", "where": "/cluster/jos\\u00e9/runs"}'
    assert redactor.redact(text) == '{"who": "<user-1>", "where": "<home>/runs"}'


def test_redacting_twice_changes_nothing():
    for text, _ in SECRETS.values():
        once = redacted(text)
        assert redacted(once) == once


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/cluster/home/alovelace/train.py", "<home>/train.py"),
        ("/home/grace/train.py by grace", "/home/<user-1>/train.py by <user-1>"),
        ("/scratch/alovelace/data", "/scratch/<user-1>/data"),
        ("written by Ada Lovelace", "written by <user-1>"),
        ("alovelace@titan: done", "<email-1>: done"),
        ("mail ada@example.org", "mail <email-1>"),
        ("on titan.cs.example.edu and titan", "on <host-1> and <host-2>"),
        ('{"host": "node-a017"} lost node-a017', '{"host": "<host-1>"} lost <host-1>'),
        ("  host      : gpu17.example.org", "  host      : <host-1>"),
        ("SLURM_JOB_NODELIST=gpu[01-04,7]", "SLURM_JOB_NODELIST=<host-1>"),
        ("MASTER_ADDR=head01 port 29500", "MASTER_ADDR=<host-1> port 29500"),
        ("--rdzv-endpoint head01:29500", "--rdzv-endpoint <host-1>:29500"),
        ("peer [10.0.0.2]:61842", "peer [<address-1>]:61842"),
        ("fe80::1ff:fe23:4567:890a%eth0", "<address-1>%eth0"),
        ("link ether 52:54:00:12:34:56", "link ether <address-1>"),
        ("/home/root/x and root cause", "/home/<user-1>/x and root cause"),
    ],
)
def test_people_hosts_and_addresses_are_replaced(text, result):
    assert redacted(text) == result


def test_a_user_named_in_one_text_is_replaced_in_all():
    redactor = Redactor(Known())
    texts = ["grace started it", "File /home/grace/train.py"]
    redactor.learn(texts)
    assert redactor.redact(texts[0]) == "<user-1> started it"


@pytest.mark.parametrize("seed", range(20))
def test_random_keys_are_recognized(seed):
    drawn = random.Random(seed)
    key = "".join(drawn.choices(string.ascii_letters + string.digits, k=40))
    assert key not in redacted(f"the value {key} was sent")


def test_a_long_text_is_redacted_in_a_moment():
    """Nothing grows with the square of a line: a progress bar is one long line."""
    line = "step 1 loss 0.5 token " * 5_000 + "x" * 50_000
    assert redacted(line).startswith("step 1 loss 0.5")
