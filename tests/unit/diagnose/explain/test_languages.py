"""The shell and the C library speak the language of the system; their messages are understood in seven."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge
from paceline.signatures.languages import to_english

SCRIPT = "/var/spool/slurmd/job81/slurm_script"
TEXTS = [
    ("rank-segfault", "{}: Zeile 31: 94721 Speicherzugriffsfehler  (Speicherabzug geschrieben) python train.py"),
    ("rank-segfault", "{} : ligne 31 : 94721 Erreur de segmentation  (core dumped) python train.py"),
    ("rank-segfault", "{}: línea 31: 94721 Violación de segmento  (`core' generado) python train.py"),
    ("rank-segfault", "{}: riga 31: 94721 Errore di segmentazione (core dump creato) python train.py"),
    ("rank-segfault", "{}: linha 31: 94721 Falha de segmentação  (imagem do núcleo gravada) python train.py"),
    ("rank-segfault", "{}：行 31: 94721 段错误               （核心已转储） python train.py"),
    ("rank-segfault", "{}: 行 31: 94721 セグメンテーションフォルト (コアダンプ) python train.py"),
    ("rank-died-signal", "{}: Zeile 31: 94721 Getötet                 python train.py"),
    ("rank-died-signal", "{} : ligne 31 : 94721 Processus arrêté      python train.py"),
    ("rank-died-signal", "{}: línea 31: 94721 Terminado (killed)      python train.py"),
    ("rank-died-signal", "{}: riga 31: 94721 Ucciso                  python train.py"),
    ("rank-died-signal", "{}：行 31: 94721 已杀死               python train.py"),
    ("rank-died-signal", "{}: 行 31: 94721 強制終了            python train.py"),
    ("rank-died-signal", "Getötet"),
    ("rank-died-signal", "Tué"),
    ("rank-died-signal", "已杀死"),
    ("wrong-python-env", "{}: Zeile 12: torchrun: Kommando nicht gefunden."),
    ("wrong-python-env", "{}: Zeile 12: torchrun: Befehl nicht gefunden"),
    ("wrong-python-env", "train.sh: ligne 12: torchrun : commande introuvable"),
    ("wrong-python-env", "train.sh: línea 12: torchrun: orden no encontrada"),
    ("wrong-python-env", "train.sh: riga 12: torchrun: comando non trovato"),
    ("wrong-python-env", "train.sh: 第 12 行：torchrun: 未找到命令"),
    ("wrong-python-env", "train.sh: 行 12: torchrun: コマンドが見つかりません"),
    ("unset-variable", "{}: Zeile 3: DATA ist nicht gesetzt."),
    ("unset-variable", "{} : ligne 3 : DATA : variable sans liaison"),
    ("unset-variable", "{}: 行 3: DATA: 未绑定的变量"),
    ("disk-full", "OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar: 'ckpt/a.pt'"),
    ("disk-full", "OSError: [Errno 28] tidak ada ruang tersisa: 'ckpt/a.pt'"),
    ("disk-full", "cp: Fehler beim Schreiben von 'a.pt': Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
    ("disk-full", "cp: erreur d'écriture de 'a.pt': Aucun espace disponible sur le périphérique"),
    ("disk-full", "OSError: [Errno 122] 超出磁盘限额"),
    ("too-many-open-files", "OSError: [Errno 24] 打开的文件过多: '/data/1.npy'"),
    ("folder-not-writable", "mkdir: das Verzeichnis kann nicht angelegt werden: Das Dateisystem ist nur lesbar"),
    ("port-in-use", "RuntimeError: bind: Die Adresse wird bereits verwendet"),
    ("port-in-use", "OSError: [WinError 10048] 通常每个套接字地址(协议/网络地址/端口)只允许使用一次。"),
    ("master-unreachable", "ConnectionRefusedError: [Errno 111] Connexion refusée"),
    ("master-unreachable", "[c10d] The client socket has failed to connect to [n1]:29500 (errno: 113 - Keine Route zum Zielrechner)."),
    ("hostname-unresolvable", "socket.gaierror: [Errno -2] Der Name oder der Dienst ist nicht bekannt"),
    ("script-missing", "python: can't open file '/home/ada/train.py': [Errno 2] そのようなファイルやディレクトリはありません"),
    ("peer-rank-died", "RuntimeError: Die Verbindung wurde vom Kommunikationspartner zurückgesetzt"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_a_message_in_another_language_is_understood(name, text):
    text = text.format(SCRIPT)
    finding = judge([text]).findings[0]
    assert finding.name == name
    assert any(text.rstrip(".") in line + "." or line in text for line in finding.evidence)


@pytest.mark.parametrize(
    "text",
    [
        "Status: Beendet",
        "Der Lauf wurde vom Benutzer Abgebrochen, Ergebnis liegt in out/",
        "训练已终止于第 10 轮",
        "epoch 3 Terminado en 12 s",
        "Morto Kombat 2, sample 17",
        "[Errno 999] whatever",
    ],
)
def test_words_of_plain_text_are_left_alone(text):
    assert to_english(text) == text
    assert judge([text]).findings[0].name == "no-error-in-log"
