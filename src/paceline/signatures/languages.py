"""Translate messages of the shell and the C library from other languages into English. Pure.

The texts are those of bash and glibc. An error number (``[Errno 28]``) takes precedence over words.
The table omits words that are common in plain text (German "Beendet", Spanish "Terminado"). The
shortest messages match only where the shell prints them: after a process id.
"""

from __future__ import annotations

import re
from functools import partial

_ERRNO = {
    2: "No such file or directory",
    5: "Input/output error",
    12: "Cannot allocate memory",
    13: "Permission denied",
    24: "Too many open files",
    28: "No space left on device",
    30: "Read-only file system",
    32: "Broken pipe",
    98: "Address already in use",
    99: "Cannot assign requested address",
    101: "Network is unreachable",
    104: "Connection reset by peer",
    110: "Connection timed out",
    111: "Connection refused",
    113: "No route to host",
    116: "Stale file handle",
    122: "Disk quota exceeded",
}
_WINDOWS = {
    1455: "Cannot allocate memory",
    10048: "Address already in use",
    10054: "Connection reset by peer",
    10060: "Connection timed out",
    10061: "Connection refused",
}
# German, French, Spanish, Italian, Portuguese, Chinese, Japanese; several forms if versions differ.
_MESSAGES = {
    "Segmentation fault": (
        "Speicherzugriffsfehler|Adressierungsfehler|Erreur de segmentation|Violación de segmento"
        "|Errore di segmentazione|Falha de"
        " segmentação|段错误|段錯誤|セグメンテーションフォルト|Segmentation 違反です"
    ),
    "Bus error": (
        "Bus-Zugriffsfehler|Bus-Fehler|Erreur du bus|Erreur de bus|Error del bus|Error de"
        " bus|Errore di bus|Erro no barramento|Erro do barramento|总线错误|バスエラー"
    ),
    "Illegal instruction": (
        "Ungültiger Maschinenbefehl|Instruction non permise|Instrucción ilegal"
        "|Istruzione non consentita|Instrução ilegal|非法指令"
    ),
    "Floating point exception": (
        "Gleitkomma-Ausnahme|Gleitkommafehler|Exception en point flottant"
        "|Exception en virgule flottante|Excepción de coma flotante|Eccezione in virgola mobile"
        "|Exceção de ponto flutuante|浮点数例外|浮点异常|浮動小数点例外"
    ),
    "command not found": (
        "Kommando nicht gefunden|Befehl nicht gefunden|commande introuvable|orden no encontrada"
        "|comando non trovato|comando não encontrado|未找到命令|コマンドが見つかりません"
    ),
    ": unbound variable": " ist nicht gesetzt.",
    "unbound variable": (
        "variable sans liaison|variable sin asignar|variabile non assegnata"
        "|variável não associada|未绑定的变量|未割り当ての変数です"
    ),
    "No such file or directory": (
        "Datei oder Verzeichnis nicht gefunden|Aucun fichier ou dossier de ce type|No existe el"
        " fichero o el directorio|No existe el archivo o el directorio|File o directory non"
        " esistente|Arquivo ou diretório"
        " inexistente|没有那个文件或目录|そのようなファイルやディレクトリはありません"
    ),
    "Permission denied": (
        "Keine Berechtigung|Permission non accordée|Permiso denegado|Permesso negato"
        "|Permissão negada|权限不够|許可がありません"
    ),
    "No space left on device": (
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar|Aucun espace disponible sur le"
        " périphérique|No queda espacio en el dispositivo|Spazio esaurito sul device"
        "|Não há espaço disponível no dispositivo"
        "|设备上没有空间|デバイスに空き領域がありません"
    ),
    "Disk quota exceeded": (
        "Der zugewiesene Plattenplatz (Quota) ist überschritten|Débordement du quota d'espace"
        " disque|Se ha excedido la cuota de disco|Quota disco superata|Cota da disco"
        " excedida|超出磁盘限额|ディスク使用量制限を超過しました"
    ),
    "Cannot allocate memory": (
        "Nicht genügend Hauptspeicher verfügbar|Ne peut allouer de la mémoire|No se pudo asignar"
        " memoria|Impossibile allocare memoria|Não foi possível alocar"
        " memória|无法分配内存|メモリを確保できません"
    ),
    "Too many open files": (
        "Zu viele offene Dateien|Trop de fichiers ouverts|Demasiados ficheros abiertos"
        "|Demasiados archivos abiertos|Troppi file aperti|Muitos arquivos"
        " abertos|打开的文件过多|打开的文件太多"
        "|ファイルを開きすぎです"
    ),
    "Address already in use": (
        "Die Adresse wird bereits verwendet|Adresse déjà utilisée|La dirección ya se está usando"
        "|Indirizzo già in uso|Endereço já em uso|地址已在使用|地址已被使用"
        "|アドレスは既に使用中です"
    ),
    "Connection refused": (
        "Verbindungsaufbau abgelehnt|Connexion refusée|Conexión rehusada|Connessione rifiutata"
        "|Conexão recusada|拒绝连接|接続を拒否されました"
    ),
    "Connection timed out": (
        "Die Wartezeit für die Verbindung ist abgelaufen|Connexion terminée par expiration du délai"
        " d'attente|Expiró el tiempo de conexión|Connessione scaduta|Tempo esgotado para"
        " conexão|连接超时|接続がタイムアウトしました"
    ),
    "Connection reset by peer": (
        "Die Verbindung wurde vom Kommunikationspartner zurückgesetzt|Connexion ré-initialisée par"
        " le correspondant|Conexión reinicializada por la máquina remota|Connessione interrotta dal"
        " corrispondente|Conexão fechada pela outra"
        " ponta|连接被对方重设|連接被對方重設|接続が相手からリセットされました"
    ),
    "No route to host": (
        "Keine Route zum Zielrechner|Aucun chemin d'accès pour atteindre l'hôte cible|No existe"
        " ninguna ruta hasta el `host'|Nessun instradamento per l'host|Não há rota para o"
        " host|没有到主机的路由|ホストへの経路がありません"
    ),
    "Network is unreachable": (
        "Das Netzwerk ist nicht erreichbar|Le réseau n'est pas accessible|La red es inaccesible"
        "|La rete non è raggiungibile|A rede está fora de alcance|网络不可达"
        "|ネットワークに届きません"
    ),
    "Broken pipe": (
        "Datenübergabe unterbrochen (broken pipe)|Relais brisé (pipe)|Tubería rota|Pipe interrotta"
        "|Pipe quebrado|断开的管道|パイプが切れました"
    ),
    "Name or service not known": (
        "Der Name oder der Dienst ist nicht bekannt|Nom ou service inconnu|Nombre o servicio"
        " desconocido|Nome o servizio sconosciuto|Nome ou serviço"
        " desconhecido|未知的名称或服务|名前またはサービスが不明です"
    ),
    "Temporary failure in name resolution": (
        "Temporärer Fehler bei der Namensauflösung|Échec temporaire dans la résolution du nom|Fallo"
        " temporal en la resolución del nombre|Errore temporaneo nella risoluzione del"
        " nome|域名解析暂时失败|名前解決に一時的に失敗しました"
    ),
    "Read-only file system": (
        "Das Dateisystem ist nur lesbar|Système de fichiers accessible en lecture seulement|Sistema"
        " de ficheros de sólo lectura|File system in sola lettura|Sistema de arquivos somente para"
        " leitura|只读文件系统|読み込み専用ファイルシステムです"
    ),
    "(core dumped)": (
        "(Speicherabzug geschrieben)|(`core' generado)|(core dump creato)|(imagem do núcleo"
        " gravada)|（核心已转储）|(核心已转储)|(吐核)|（吐核）|(コアダンプ)"
    ),
}
# The shell's report of a process that a signal ended, after its id or alone in its line.
_ENDINGS = {
    "Killed": (
        "Getötet|Abgebrochen (Killed)|Processus arrêté|Tué|Terminado (killed)|Matado|Ucciso|Morto"
        " (Killed)|Morto|已杀死|被杀死|強制終了|强制终止"
    ),
    "Aborted": "Abgebrochen|Abandon|Abortado|Annullato|已放弃|中止",
    "Terminated": "Beendet|Terminé|Terminado|Terminato|已终止",
}


def _english(table: dict[str, str]) -> dict[str, str]:
    return {form: english for english, forms in table.items() for form in forms.split("|")}


def _any_of(forms: dict[str, str]) -> str:
    return "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))


_FORMS = _english(_MESSAGES)
_SIGNALS = _english(_ENDINGS)
_FORM = re.compile(_any_of(_FORMS))
_SIGNAL = re.compile(
    rf"(?P<before>^\s*|: +\d+ +)(?P<form>{_any_of(_SIGNALS)})(?=\s*$|\s{{2,}}\S|\s+\(|\s*（)"
)
_PLACE = re.compile(
    r"(?:\b(?:Zeile|ligne|línea|linea|riga|linha)|行) *(?P<line>\d+) ?[:：]|第 ?(?P<nth>\d+)"
    r" ?行[:：]"
)
_SPACED_COLON = re.compile(r"[ \xa0](?=:)")
_NUMBER = re.compile(r"\[Errno (?P<errno>\d+)\] (?P<text>[^:'\"]*[^:'\"\s])")
_TORCH = re.compile(r"errno: (?P<errno>\d+) - (?P<text>[^)]+)")
_WINDOWS_NUMBER = re.compile(r"\[WinError (?P<errno>\d+)\] (?P<text>[^:'\"]*[^:'\"\s])")


def anchors() -> list[str]:
    """Return pieces of text, in lower-case ASCII, one of which is in every translatable line."""
    return [form.encode().lower().decode() for form in (*_FORMS, *_SIGNALS)] + [
        "[errno ",
        "errno: ",
        "[winerror ",
    ]


def to_english(text: str) -> str:
    """Translate the known messages in a line into English."""
    english = _FORM.sub(lambda match: _FORMS[match[0]], text)
    english = _SIGNAL.sub(lambda match: match["before"] + _SIGNALS[match["form"]], english)
    if english != text:
        english = _PLACE.sub(
            lambda match: f"line {match['line'] or match['nth']}:", _SPACED_COLON.sub("", english)
        )
    for pattern, table in ((_NUMBER, _ERRNO), (_TORCH, _ERRNO), (_WINDOWS_NUMBER, _WINDOWS)):
        english = pattern.sub(partial(_numbered, table), english)
    return english


def _numbered(table: dict[int, str], match: re.Match[str]) -> str:
    """Insert the English message of the error number before the text's own message."""
    message = table.get(int(match["errno"]))
    if message is None or match["text"].startswith(message):
        return match[0]
    place = match.start("text") - match.start()
    return f"{match[0][:place]}{message}: {match['text']}"
