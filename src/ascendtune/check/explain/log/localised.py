"""Messages of shells, the C library and compilers in other languages, translated to English."""

from __future__ import annotations

import re

_MESSAGES = {
    "command not found": (
        *("未找到命令", "找不到命令", "指令找不到", "找不到指令", "Kommando nicht gefunden", "commande introuvable"),
        *("orden no encontrada", "comando não encontrado", "comando non trovato", "nie znaleziono polecenia"),
        *(
            "コマンドが見つかりません",
            "команда не найдена",
            "команду не знайдено",
            "명령어를 찾을 수 없음",
            "komut yok",
        ),
    ),
    "not found": ("未找到",),  # dash
    "No such file or directory": (
        *("没有那个文件或目录", "沒有此一檔案或目錄", "Datei oder Verzeichnis nicht gefunden"),
        *("Aucun fichier ou dossier de ce type", "No existe el fichero o el directorio"),
        *("No existe el archivo o el directorio", "Arquivo ou diretório inexistente", "File o directory non esistente"),
        *("Nie ma takiego pliku ani katalogu", "そのようなファイルやディレクトリはありません"),
        *("Нет такого файла или каталога", "그런 파일이나 디렉터리가 없습니다"),
    ),
    "Permission denied": (
        *("权限不够", "拒絕不符權限的操作", "Keine Berechtigung", "Permission non accordée", "Permiso denegado"),
        *("Permissão negada", "Permesso negato", "Brak dostępu", "許可がありません", "Отказано в доступе", "허가 거부"),
    ),
    "No space left on device": (
        *("设备上没有空间", "裝置上已無多餘空間", "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
        *("Aucun espace disponible sur le périphérique", "No queda espacio en el dispositivo"),
        *("Não há espaço disponível no dispositivo", "Spazio esaurito sul device", "Brak miejsca na urządzeniu"),
        *("デバイスに空き領域がありません", "На устройстве не осталось свободного места", "장치에 남은 공간이 없음"),
    ),
    "Cannot allocate memory": (
        *("无法分配内存", "無法配置記憶體", "Nicht genügend Hauptspeicher verfügbar", "Ne peut allouer de la mémoire"),
        *("No se pudo asignar memoria", "Não foi possível alocar memória", "Impossibile allocare memoria"),
        *("Nie można przydzielić pamięci", "メモリを確保できません", "Невозможно выделить память"),
    ),
    "Disk quota exceeded": ("超出磁盘限额", "磁碟配額已滿"),
    "Connection refused": ("拒绝连接", "連線被拒絕"),
    "Connection timed out": ("连接超时", "連線超過時間"),
    "Connection reset by peer": ("连接被对方重设", "連線被對方重設"),
    "No route to host": ("没有到主机的路由", "找不到通往該主機的路由路徑"),
    "Network is unreachable": ("网络不可达", "無法接觸網路"),
    "Address already in use": ("地址已在使用", "位址已經有在使用"),
    "Too many open files": ("打开的文件过多", "開啟太多檔案"),
    "Operation not permitted": ("不允许的操作", "此項操作並不被允許"),
    "Argument list too long": ("参数列表过长", "引數列項目過長"),
    "Read-only file system": ("只读文件系统", "唯讀的檔案系統"),
    "Exec format error": ("可执行文件格式错误", "可執行檔格式錯誤"),
    "file in wrong format": ("文件格式错误",),
    "Resource temporarily unavailable": ("资源暂时不可用", "資源暫時無法取得"),
    "Input/output error": ("输入/输出错误", "輸入/輸出錯誤"),
    "Name or service not known": ("未知的名称或服务", "名稱或服務未知"),
    "Temporary failure in name resolution": ("域名解析暂时失败", "解析名稱時發生暫時性錯誤"),
}
"""From the message catalogues of bash 5.2, glibc 2.36 and binutils 2.40; at the end of a line, after a colon."""
_SIGNALS = {
    "Segmentation fault": ("段错误", "程式記憶體區段錯誤", "Speicherzugriffsfehler", "Erreur de segmentation"),
    "Killed": ("已杀死", "强制结束", "強制結束", "Getötet", "Processus arrêté"),
    "Aborted": ("已放弃", "已中止"),
    "Bus error": ("总线错误", "匯流排錯誤"),
    "Illegal instruction": ("非法指令", "無效指令"),
}
"""Alone on a line, or after the id of the process that the signal ended."""
_PARTS = {
    "cannot open shared object file": ("无法打开共享对象文件", "无法打开共享目标文件", "無法開啟共用物件"),
    "error while loading shared libraries": ("载入共享库时出错", "載入共用函式庫時發生錯誤"),
    "bad interpreter": ("解释器错误",),
    "error adding symbols": ("无法添加符号", "添加符号时出错"),
    "Unable to locate package": ("无法定位软件包", "找不到套件"),
}
_ENGLISH = {
    local.encode(): english.encode()
    for table in (_MESSAGES, _SIGNALS, _PARTS)
    for english, each in table.items()
    for local in each
}
_LEVELS = ("致命错误", "致命錯誤", "错误", "錯誤")
_SIGNS = (*_ENGLISH, *(level.encode() for level in _LEVELS))
_SIGNS_IN_ASCII = tuple(filter(bytes.isascii, _SIGNS))
_LETTERS = re.compile(
    b"[" + bytes({next(byte for byte in sign if byte > 127) for sign in _SIGNS if not sign.isascii()}) + b"]"
)
"""First bytes of their letters; those of progress bars differ."""
_COLON = rb"(?::|\xef\xbc\x9a)"
"""ASCII, or full-width."""


def _any_of(*tables: dict[str, tuple[str, ...]]) -> bytes:
    words = [re.escape(local.encode()) for table in tables for each in table.values() for local in each]
    # The longest first: some are prefixes of others.
    words.sort(key=len, reverse=True)
    return b"|".join(words)


_MESSAGE = re.compile(
    rb"(?:\xc2\xa0| )?" + _COLON + rb" *(?P<local>" + _any_of(_MESSAGES) + rb")\.?[ \t\r]*$", re.MULTILINE
)
_SIGNAL = re.compile(
    rb"(?:^|(?<=\d )|(?<=\d  ))(?P<local>" + _any_of(_SIGNALS) + rb")(?=[ \t\r]|\xef\xbc\x88|\(|$)", re.MULTILINE
)
_PART = re.compile(rb"(?P<local>" + _any_of(_PARTS) + rb")" + rb"(?:" + _COLON + rb" ?)?")
_DUMPED = re.compile(" ?(?:（|\\()(?:核心已转储|核心已傾印|吐核)(?:\\)|）)".encode())
_LINE_OF_SCRIPT = re.compile(
    _COLON + b" ?" + "(?:第 ?(?P<a>\\d+) ?(?:行|列)|行 ?(?P<b>\\d+))".encode() + b" ?" + _COLON + rb" *"
)
_LEVEL = re.compile(
    rb"(?P<before>^|:\d+: |^[\w.+-]+: )(?P<level>"
    + "(?:致命)?(?:错误|錯誤)".encode()
    + rb")"
    + _COLON
    + rb" ?(?=[^\s\d])",
    re.MULTILINE,
)
_OF_MAKE = re.compile(rb"(?P<before>\*\*\* \[[^\]\n]*\] )" + "(?:错误|錯誤)".encode() + rb" (?P<number>\d+)")


def in_english(block: bytes) -> bytes:
    """Translate the known messages of shells, the C library and compilers in `block` to English, followed by the
    original in parentheses; the number of lines stays the same."""
    is_other = not block.isascii() and _LETTERS.search(block) is not None
    if not any(map(block.__contains__, _SIGNS if is_other else _SIGNS_IN_ASCII)):
        return block
    block = _DUMPED.sub(b" (core dumped)", _LINE_OF_SCRIPT.sub(_line_of_script, block))
    block = _MESSAGE.sub(lambda match: b": %s (%s)" % (_ENGLISH[match["local"]], match["local"]), block)
    block = _SIGNAL.sub(lambda match: _ENGLISH[match["local"]], block)
    block = _PART.sub(_part, block)
    return _OF_MAKE.sub(rb"\g<before>Error \g<number>", _LEVEL.sub(_level, block))


def _line_of_script(match: re.Match[bytes]) -> bytes:
    return b": line %s: " % (match["a"] or match["b"])


def _part(match: re.Match[bytes]) -> bytes:
    colon = b"" if match[0] == match["local"] else b": "
    return _ENGLISH[match["local"]] + colon


def _level(match: re.Match[bytes]) -> bytes:
    """git writes `fatal:`, compilers write `fatal error:` after the place in the source."""
    of_compiler = b":" in match["before"]
    level = (b"fatal error" if of_compiler else b"fatal") if match["level"].startswith("致命".encode()) else b"error"
    return match["before"] + level + b": "
