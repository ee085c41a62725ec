"""Log level of a line: error, warning, info, or part of another message."""

from __future__ import annotations

import re

_ERROR = re.compile(
    r"(?:^|[\s\[|(])(?:ERROR(?! \| stderr \|)|CRITICAL|FATAL)(?=[\s\]|:)])|\[(?:error|fatal|critical) *\]|"
    r"\bNCCL WARN\b|^E20\d{6} |:\d+\)?: (?:fatal )?error: |^(?:(?:==> )?[Ee]rror|fatal|Exception): |"
    r"^\[?[EF](?:\d{4})?\d{3,4} \d\d:\d\d:\d\d|"
    r"\blevel\W{1,4}(?i:error|fatal|critical)\b|"
    r"\d\d:\d\d(?:[.,]\d+)?\]? (?:error|fatal) |^CMake Error\b|\berror\[E\d+\]: |"
    r"^\W*E[A-Z1-9]\d{4}: |^[a-z][\w.-]*: (?:fatal )?error: |"
    r"^rsync error: |"
    r"^[a-z]\w+: error (?:load|read|open|pars)ing |"
    r"^\[20\d\d-[^\]]{6,24}\] (?:\[[\w.]{1,20}\] )?(?:error|fatal): "  # slurmd
    r"|\d\d:\d\d[.,]\d+ [EF] \| |\b(?:ASSERT(?:ION)?|CHECK) FAILED: \S"  # PyPTO
    r"|\b[A-Z]\w+_Error\w*\(E[A-Z1-9]\d{4}\): |^E[A-Z1-9]\d{4}(?:\[PID| {2}\S)|"  # CANN
    r"^E: (?=[A-Z])|^nvcc fatal +: |^g?make(?:\[\d+\])?: \*\*\* |^(?:ERRO|FATA|PANI)\[\d+\] |"
    r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [EFC] \d+ \d+\] |"  # Ray
    r": F \S+\.(?:cc|cpp):\d+\] |^terminate called \w|^(?:[a-z]+[A-Z]|[A-Z]{2})\w* error: (?=[A-Za-z])"
    r"|^(?:C\+\+ exception with description \"|Unhandled [Ee]xception: \S|Uncaught \w*(?:[Ee]xception|Error): \S)|"
    r"^\S+\.(?:cc|cpp|cu|h|hpp):\d+:? Check failed: "
)
_SUCCEEDED = re.compile(r"\bsucceeded\W*$")
_SIGNS = (
    "rror: ",
    "rror]",
    "rror[",
    "Error",
    "ERROR",
    "xception",
    "Traceback",
    "Root Cause",
    "fatal",
    "FATAL",
    "CRITICAL",
    "WARN",
    " E | ",
    " FAILED: ",
    ": *** ",
    "ERRO[",
    "FATA[",
    "terminate called",
    "Check failed: ",
)
_SIGNS_AS_BYTES = re.compile(
    "|".join([*map(re.escape, _SIGNS), r"[EF][A-Z]?\d|\d\]? error |^E: |\d [EFC] \d"]).encode()
)
_GLOG = re.compile(
    r"[EF](?:\d{3,8} \d\d:|20\d{6} |[A-Z1-9]\d{4}(?:: |\[PID|  )|: )|\d [EFC] \d+ \d+\]|: F \S+\.c(?:c|pp):\d"
)
_STAMPED = re.compile(r"\d\]? error (?=\S*\d)")
_WARNING = re.compile(
    r"^(?:[a-z][\w.-]*: )?warning: |\w*Warning:(?! NPU warning, error code is)|"
    r"\[warn(?:ing)? *\]|(?<!NCCL )(?<!error:)(?<!=)\bWARN(?:ING)?\b(?!! lib[\w.]+ not found)|"
    r"^\W*\[?W(?:(?:\d{4})?\d{4} |\d{3} \d\d:)|"
    r"^\[W (?!\S+ compiler_depend\S+ Warning: NPU warning, error code)|\bwarnings\.warn\(|\[[WD]\] |"
    r"\d: W (?:tensorflow|external)/|(?<!-)\blevel\W{1,4}(?i:warn(?:ing)?)\b|"
    r"\b(?<!to )[Ii]gnor(?:e|ed|ing)\b(?! the above)|\b[Ss]kipp(?:ed|ing)\b(?! device \S+ PCI rejects)|"
    r"\b[Ff]all(?:ing)? ?back\b|"
    r"\bcontinuing (?:with(?:out)?|anyway)|, using (?:the|a) \w+|[.,;] [Uu]sing [\w.-]+ instead\b|"
    r"\bnot (?:reported|shown|logged)$|"
    r"\bnot (?:installed|found|available)[.,;:]? (?:- )?(?:[Uu]sing|[Ss]kip|[Pp]roceed|[Cc]ontinu|[Ww]ill use)|"
    r"\b[Pp]roceeding without\b|(?<=[，。；、,; 将已则])(?:跳过|使用默认|改用|忽略|回退|继续)|"
    r"^\W{0,3}(?:警告|提示)\W",
    re.ASCII,
)
_INFO = re.compile(
    r"^\W{0,3}\[?I(?:(?:\d{4})?\d{4} |\d{3} \d\d:)|\[(?:INFO|info|debug) *\]|\bNCCL INFO\b|^INFO:|\[I\] |"
    r"(?:^|[\s\[|])(?:INFO(?! \| stdout \|)|DEBUG)(?=[\s\]|:])|"
    r"(?<!-)\blevel\W{1,4}(?i:info|debug)\b(?!.*\baborting \w+ request)"  # Ollama gives a request up
)
_ENDS_COMMAND = "WARNING: command error: ''"
"""xtuner's line, logged as a warning, for the exception that ended a command."""
_OWN_ERROR = re.compile(
    r"\[?[EF](?:\d{4})?\d{3,4} \d\d:\d\d|\[[EF] \S+\.cpp:\d+\]|E[A-Z1-9]\d{4}: |\[(?:ERROR|FATAL)\] "
)
"""Beginning of a line that a library logs as an error, even if a log collector puts another level before it."""
_ASIDE = re.compile(
    r"(?=.*\\(?:\(.*\\\)|times\s|frac\{|boxed\{))|"  # LaTeX in a model's output
    r"\s*(?:Possible (?:Cause|Reason)|Solution|Suggestion)\b|\s*frame #\d+|"
    r"\s*(?:and |please |or )*(?:submit|report|open|file) (?:an? |this |the |your )\w.*\b(?:issues?|bugs?)\b|"
    r"\s*(?:│(?! {3}\S[^│]*$)|[❱╭]|╰(?!─▶))|"  # of boxes; uv's margin has no right side
    r"\s+(?:raise|return|yield|assert|await|with|except|self\.\w+)\b|>>> ",
    re.IGNORECASE,
)

_OF_TROUBLE = re.compile(
    r"\b(?:error|failed|failure|exception|abort(?:ed|ing)|killed|fatal|crashed|core dumped|force terminated|"
    r"err!|no \S+ (?:was |were |is )?(?:found|detected|available)\.|no (?:\S+ )?devices? (?:is |was |were )?"
    r"(?:found|detected)|no \S+ device is detected|"
    r"exit(?:ed with|s with|ing with)? (?:exit )?(?:code|status) -?[1-9]\d*|"
    r"unexpected status code|before +timing out|exiting due to|(?:will|must) exit now|not found for url|"
    r"unexpected end of file|unable to resolve|is restricted|"
    r"has (?:an )?invalid \w+(?!.*[:=] ?0\b)|exceeded (?:its|the|job) \w+ limit|skipping step, detected inf)(?!\w)",
    re.IGNORECASE,
)
_OF_THREAD = re.compile(
    r"Exception in (?:thread|callback) |future: <Task |exception calling callback |Error on request:$|"
    r"Exception (?:occurred|happened) during processing of request from "
)
"""Lines that threads, tasks and servers of Python print above an exception after which the program goes on."""
_IGNORED_BELOW = ("Exception ignored", "--- Logging error ---")
_REDIRECTED = re.compile(r" \| (?:ERROR|INFO) \| std(?:err|out) \|")
"""Prefix that FastChat's logger adds to every line of a stream; its level only marks the stream."""
_WHOLE = re.compile(r"(?:Terminated|Out of memory|OOM|\w*(?:Error|Exception)|SystemExit: (?!0$|None$).+)[.!]?$")
"""Lines that contain only the way a program ended."""
_REFUSAL = re.compile(
    r"(?!.*[:=] ?(?:0|none|None|\[\]|\{\})$)\W{0,3}(?:\[?Errno \d+\] )?"
    r"(?:[Ii]nvalid \w|[Cc]annot \w|[Cc]an't \w|[Cc]ould not \w|[Uu]nable to \w|[Uu]nsupported \w|[Uu]nknown \w|"
    r"[Uu]ndefined (?:symbol|reference)\b|"
    r"[Nn]o such \w|[Nn]o module named|[Pp]ermission denied|[Mm]issing \w|[Nn]ot enough \w)|"
    r".{0,160}: undefined symbol: \w|[Tt]here (?:are|is) not enough \w|"
    r".{0,120}: not found\W*$|.{0,120}\b(?:[Tt]imed out|[Cc]onnection (?:refused|reset)|[Nn]o route to host)\W*$"
)
_REFUSES = re.compile(
    r"\b(?:abort|cannot|can not|could not|unable to|not able to|fail(?:ed|s|ure)?|did not|does not (?:exist|have)|"
    r"not (?:found|possible|available|supported|enough|compatible)|incompatible|insufficient|no longer|invalid|"
    r"unknown)\b",
    re.IGNORECASE,
)
_PROGRAM_REFUSES = re.compile(
    r"(?!(?:bash|cat|chgrp|chmod|chown|cp|debconf|df|du|find|grep|kill|ld|ldconfig|ln|ls|mesg|mkdir|modprobe|mv|"
    r"nvidia-persistenced|perl|pkill|rm|rmdir|sed|stat|stty|tar|touch|tput|umount|unlink|which): )"
    r"[a-z][\w.+-]*(?:\[\d+\])?: (?:(?:fatal|error): )?"
    r"(?:[Ff]ailed to|[Cc]annot|[Cc]an't|[Cc]ould not|[Cc]ouldn't|[Uu]nable to) \w|"
    r"(?:mpirun|mpiexec|orterun|prterun) (?:was unable to|could not) \w"
)
"""Errors of Unix programs that did not do their job. Small tools are excluded: scripts continue after their errors."""
_LAST_REFUSAL = re.compile(
    r"[a-z][\w.+-]*: (?:[\w-]+: )?(?:[Uu]nknown (?:command|queue|option|argument|subcommand|host|user)\b|"
    r"[Ii]nvalid (?:command|option|argument|choice|user|partition|account|credentials?)\b|would exceed \w|"
    r"[Jj]ob violates \w|a password is required|effective uid is not 0|no server running|not in \w+ format|"
    r"[Tt]his (?:system|host|kernel) does not support \w)|"
    r"env: .+: No such file or directory$|.*: short-name .* did not resolve|"
    r".*\b(?:[Jj]ob|[Rr]equest) (?:was )?not (?:submitted|accepted|created)\b|Job for \S+ failed because\b|"
    r"(?:\S+: )?[Ee]xceeded quota: |The \w+ [\"'][^\"']+[\"'] is invalid: |Refus(?:ing|ed) to \w|Couldn't \w|"
    r"[Pp]lease (?:specify|provide) --?\w|[Cc]onfig(?:uration)? file not found\b|.*\bis busy, (?:please )?try again\b|"
    r".*\b(?:password|passphrase|user name|token) .{0,40}\bnot correct\b|.*\. Can't operate\.$|"
    r".*\b(?:but only \d+|not enough|is empty|is missing|not found|no longer)\b.{0,80}[.,;] ?"
    r"(?:[Ee]xiting|[Aa]borting|[Ss]topping)\W*$|.*\bis already running\. (?:Use|Run|Stop) \w|"
    r"(?:The|This) (?:command|operation|product type|option|feature|request) (?:is|does) not "
    r"(?:support|allow|permit|exist|available|valid)|"
    r"There is no \w+ to be \w|"
    r".*\b(?:requires|enough|sufficient|need) (?:root |administrator )?privileges\b|Argument list too long$|"
    r"No package \S+ available|Package \S+ is not available|Updates were rejected because\b"
)
"""Refusals that count only at the end of an excerpt: after one in the middle the job may have continued."""
_TOOL_REFUSES = re.compile(
    r"(?:s(?:alloc|acctmgr|batch|bcast|cancel|control|info|queue|run|trigger)|[bmq](?:sub|del|stat|kill|hold|rls|alter)|"
    r"kubectl|helm|kubeadm|minikube|crictl|nerdctl|ctr|docker|docker-compose|podman|buildah|skopeo|apptainer|singularity|"
    r"enroot|ssh|scp|sftp|ssh-\w+|rsync|screen|tmux|sudo|su|apt|apt-get|dpkg|yum|dnf|rpm|zypper|brew|snap|spack|module|"
    r"conda|mamba|micromamba|uv|pip3?|poetry|npm|git|git-lfs|aws|gsutil|gcloud|az|rclone|s3cmd|ossutil\w*|hf|"
    r"huggingface-cli|modelscope|ollama|ray|vllm|sglang|swift|llamafactory-cli|accelerate|deepspeed|torchrun|msrun|axolotl|"
    r"nvidia-smi|nvidia-ctk|nvidia-container-\w+|dcgmi|npu-smi|hccn_tool|msprof|atc|ib\w+|mpirun|mpiexec|srun|numactl|"
    r"taskset|systemctl|mount\S*|ninja|cmake|gcc|g\+\+|nvcc|hipcc|java|node): "
    r"(?!.*\b(?:will|may|default|found \d|up to date|nothing to do)\b).*(?:\b(?:denied|refused|rejected|invalid|"
    r"unknown|unrecognized|unsupported|illegal|missing|cannot|can't|could not|couldn't|unable to|"
    r"(?:did not|does not|doesn't) (?:support|exist|have|match|resolve|recogni[sz]e|respond|contain|appear|accept)|"
    r"not (?:a|an|found|allowed|permitted|supported|available|enough|in)|"
    r"no such (?:file|host|command|option|job|container|image|service|device|user|module)|already exists|"
    r"no (?:package|match\w*|server|longer|space)|there is no|"
    r"(?:password|arguments?|option|value|privileges?|login|token) (?:is|are) required|"
    r"too (?:many|few|long|large)|bad \w+)\b|No such file or directory$)",
    re.IGNORECASE,
)
"""Last line of a tool that refuses: "TOOL: …"."""
_HINT = re.compile(
    r"(?:See|Try|Use|Run|Refer|Type|Usage|For more|For help|Please (?:see|refer|check))\b|[Tt]erminating early due to|"
    r"tar: Child returned status \d",
)
"""Hints that programs print below a refusal."""
_WENT_ON = re.compile(
    r"\b(?:step|epoch|iter\w*|loss)\b.{0,12}\d|(?<!\bnot )\b(?:done|finished|completed?|succeeded|successfully|saved|"
    r"synced|started|starting|ready|connected|is up|training|ok|built|locked|acquired|listening)\b|^(?!#{2})\S*[$#] ?$",
    re.IGNORECASE,
)
"""Words of a job in progress."""
_NOT_DONE = re.compile(
    r"\b(?:not|never|cannot|unable to|fail(?:ed|s)? to|\w+n't) (?:be )?"
    r"(?:complet|finish|start|succe|connect|sav|build|built)",
    re.IGNORECASE,
)
_DOES_WITHOUT = re.compile(
    r"(?:[,;(] ?| - )(?:so |will |now |then )?(?:retr|us(?:e|ing)\b|fall|continu|skip|ignor|runn|going|trying|switch|"
    r"software|CPU|cache disabled)|\bretry \d",
    re.IGNORECASE,
)
"""End of a refusal that names the program's fallback."""
_GOES_ON = re.compile(
    r"\b(?:will|may|can) (?:still )?(?:be (?:used|ignored|disabled)|continue|run|result in|lower|degrade|work)\b|"
    r"\binstead\b|\bdeprecat|\b(?-i:NOTE): |"
    r"[,;.] (?:starting|assuming|waiting|listening|using|trying|treating|installing|creating|downloading|run) \w|"
    r"[,;] ?(?:waiting|replaced|retrying)\b|[,;] performance \w",
    re.IGNORECASE,
)
_GOES_ON_WITHOUT = re.compile(
    r"\bcould not transform\b.* will run it as-is|"
    r"not (?:available|installed|found|enabled)\b.{0,40}\b(?:some|these|the|this|its) [\w ]{3,30} will "
    r"(?:not be enabled|be (?:disabled|skipped|ignored))\b",
    re.IGNORECASE,
)
_SOUNDS_BAD = re.compile(
    r"\bmis-?match(?:es|ed)?\b|\btim(?:ed|ing) out\b|\bnot (?:installed|fit|match|recogni[sz]ed)\b|"
    r"\b(?:does not|doesn't|do not|don't) (?:fit|match)\b|\bunexpected|\bmissing\b|\bexpected .{1,60}\b(?:but|got)\b|"
    r"\bSIG(?:SEGV|ABRT|KILL|BUS|ILL|FPE)\b|\b(?:denied|refused)\b|[Ee]xception\b|EXCEPTION|"
    r"失败|错误|异常|无法|不支持|找不到|不存在|超时|不匹配"
)
_DENIED = re.compile(
    r"\b(?:no|without|zero|0)\s+(?:\w+\s+)?(?:error|failure|exception)s?\b|\b(?:no|0) failed\b|"
    r"\bexception ignored\b|"
    r"\b(?:error|fail\w*)s?(?:[ _]rate)?(?!\W{0,2}-\d+\b(?!\.)| \(\d+\))\W{1,3}"
    r"(?:none\b|false\b|(?!0x|\d{5,}\b(?!\.)|\d\d-\d\d \d\d:)[\d.]+)|"
    r"\b(?:error|fail\w*)[ _][a-z]{3,12}(?:s ?[:=] ?(?:none|0)\b(?!\.|, ?\d)| *[:=] *no$)",
    re.IGNORECASE,
)
"""Error rates and counts of zero errors; error codes, in contrast, are hexadecimal, negative or long."""


def may_matter(text: str) -> bool:
    """Whether a line looks like an error; any other line matters only if an entry knows it.

    Saves most of the work on long logs.
    """
    signs = any(map(text.__contains__, _SIGNS)) or _GLOG.search(text) is not None
    return signs or (" error " in text and _STAMPED.search(text) is not None)


def has_sign(line: bytes) -> bool:
    """Whether `may_matter` may be true for the line, or for one that differs from it only in digits."""
    return _SIGNS_AS_BYTES.search(line) is not None


def is_error(text: str, message: str) -> bool:
    """Whether a line is logged as an error; an indented one belongs to another line."""
    is_called_so = (_ERROR.search(text) or _ERROR.match(message)) is not None
    return is_called_so and bool(message) and not message[0].isspace() and _SUCCEEDED.search(message) is None


def announces_caught(text: str, message: str) -> bool:
    """Whether the exception below a line was logged, or ended a thread or a task: the program continues."""
    return is_error(text, message) or _OF_THREAD.match(message) is not None


def is_ignored_below(text: str) -> bool:
    """Whether Python ignores the exception below a line and continues."""
    return any(map(text.__contains__, _IGNORED_BELOW))


def is_warning_or_news(text: str, message: str = "") -> bool:
    """Whether the level of a line is below error, and its message has no level of its own.

    Args:
        message: the line without its prefixes, if they are known.
    """
    is_below = _INFO.search(text) is not None or is_warning(text)
    return is_below and (len(message) >= len(text) or _OWN_ERROR.match(message) is None)


def is_warning(text: str) -> bool:
    return _WARNING.search(text) is not None and _ENDS_COMMAND not in text


def goes_on_without(text: str) -> bool:
    """Whether a line reports that something is missing, and that the job continues without it."""
    return _GOES_ON_WITHOUT.search(text) is not None


def is_aside(message: str) -> bool:
    """Whether a line is advice, a frame of native code, or code: it adds nothing about the failure."""
    return _ASIDE.match(message) is not None


def are_last_words(text: str, message: str) -> bool:
    """Whether the last line of a log reports a failure of the job; metrics may have such names as well.

    Args:
        message: the line without its prefixes.
    """
    text = _REDIRECTED.sub("", text)
    if is_warning_or_news(text) or _DENIED.search(text):
        return False
    return bool(_OF_TROUBLE.search(text) or _REFUSAL.match(message) or _WHOLE.match(message.strip()))


def is_refusal(text: str) -> bool:
    """Whether a paragraph reports that something was not done; False for warnings, and if the job continues."""
    return _REFUSES.search(text) is not None and not is_warning_or_news(text) and not _GOES_ON.search(text)


def program_refuses(text: str, message: str) -> bool:
    """Whether a line is the error of a program that did not do its job: "PROGRAM: failed to …"."""
    if _PROGRAM_REFUSES.match(message) is None or is_warning_or_news(text):
        return False
    return not is_overcome(text)


def is_last_refusal(text: str, message: str) -> bool:
    """Whether the last line of an excerpt reports that something was not done."""
    is_denied = is_warning_or_news(text) or _DENIED.search(text) or _GOES_ON.search(text)
    return (_LAST_REFUSAL.match(message) or _TOOL_REFUSES.match(message)) is not None and not is_denied


def is_hint(message: str) -> bool:
    """Whether a line only refers to more information, below a refusal."""
    return _HINT.match(message) is not None


def went_on(text: str) -> bool:
    """Whether a line has words of a job in progress."""
    return _WENT_ON.search(text) is not None and _NOT_DONE.search(text) is None


def is_overcome(text: str) -> bool:
    """Whether a line names the program's fallback, or reports that nothing failed."""
    return any(each.search(text) for each in (_DENIED, _GOES_ON, _DOES_WITHOUT))


def sounds_bad(text: str) -> bool:
    """Whether a line, which may be a warning, has words of trouble; too vague to be reported as a failure."""
    has_words = any(words.search(text) for words in (_SOUNDS_BAD, _REFUSES, _OF_TROUBLE))
    return has_words and _DENIED.search(text) is None
