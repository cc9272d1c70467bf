# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parses Triton's textual intermediate representation into `ir` objects.

Most operations follow one pattern (operands, words, attributes, types) and need no code of their own here; the
few with a syntax of their own are constants, structured control flow and functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.kernels.executor.attributes import array_of, dense_of, number_of, type_of
from metrale_caps.kernels.executor.ir import Block, Function, Module, Operation, Region, Successor, Type, Value
from metrale_caps.kernels.executor.lexer import Token, tokens_of

if TYPE_CHECKING:
    from metrale_caps.kernels.executor.ir import Attribute

_OWN_SYNTAX = frozenset({"arith.constant", "scf.for", "scf.if", "scf.while", "ub.poison"})


def parse(text: str) -> Module:
    """Parse the text of a module.

    Raises:
        ValueError: the text is not of the expected form; the message shows the line.
    """
    return _Parser(text).module()


class _Parser:
    """A cursor over the tokens, and the values that are in scope."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._tokens = tokens_of(text)
        self._position = 0
        self._values: dict[str, Value] = {}
        self._defined = 0

    # -- cursor ---------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._token.text == text:
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"expected {text!r}, found {self._token.text!r}")

    def _fail(self, reason: str) -> None:
        line = self._token.line
        shown = self._lines[line - 1].strip() if line <= len(self._lines) else "end of text"
        raise ValueError(f"line {line}: {reason}: {shown}")

    # -- values and types -----------------------------------------------------------------------------------

    def _define(self, name: str, value_type: Type) -> Value:
        value = Value(self._defined, value_type)
        self._defined += 1
        self._values[name] = value
        return value

    def _value(self) -> Value:
        name = self._next().text
        if name not in self._values:
            self._fail(f"{name} is not defined")
        return self._values[name]

    def _type(self) -> Type:
        return type_of(self._next().text)

    def _types(self) -> list[Type]:
        """One type, or several in parentheses."""
        if not self._accept("("):
            return [self._type()]
        types: list[Type] = []
        while not self._accept(")"):
            types.append(self._type())
            self._accept(",")
        return types

    def _assignments(self) -> tuple[list[str], list[Value]]:
        """`(%a = %b, ...)`: names to be defined, and their first values."""
        names: list[str] = []
        initial: list[Value] = []
        self._expect("(")
        while not self._accept(")"):
            names.append(self._next().text)
            self._expect("=")
            initial.append(self._value())
            self._accept(",")
        return names, initial

    # -- module, functions, regions -------------------------------------------------------------------------

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        while self._token.kind != "end":
            if self._next().text == "tt.func":
                function = self._function()
                functions[function.name] = function
        return Module(functions)

    def _function(self) -> Function:
        public = self._next().text == "public"
        name = self._next().text
        self._values = {}
        arguments = self._declared_arguments()
        while self._token.text != "{" or self._tokens[self._position - 1].text == "attributes":
            if self._accept("{"):
                self._dictionary("}")
            else:
                self._next()
        return Function(name, self._region(arguments), public)

    def _declared_arguments(self) -> tuple[Value, ...]:
        """`(%a: i32 {tt.divisibility = 16 : i32}, ...)`."""
        arguments: list[Value] = []
        self._expect("(")
        while not self._accept(")"):
            name = self._next().text
            self._expect(":")
            arguments.append(self._define(name, self._type()))
            if self._accept("{"):
                self._dictionary("}")
            self._accept(",")
        return tuple(arguments)

    def _region(self, arguments: tuple[Value, ...] = ()) -> Region:
        self._expect("{")
        blocks = [Block("^entry", arguments)]
        while not self._accept("}"):
            if self._token.kind == "label":
                label = self._next().text
                declared = self._declared_arguments() if self._token.text == "(" else ()
                self._expect(":")
                blocks.append(Block(label, declared))
            else:
                blocks[-1].operations.append(self._operation())
        if len(blocks) > 1 and not blocks[0].operations:
            del blocks[0]
        return Region(blocks)

    def _structured(self, arguments: tuple[Value, ...] = ()) -> Region:
        """A region of structured control flow, whose last operation is not spelt out if it yields nothing."""
        region = self._region(arguments)
        operations = region.entry.operations
        if not operations or operations[-1].name not in {"scf.yield", "scf.condition"}:
            operations.append(Operation("scf.yield"))
        return region

    # -- operations -----------------------------------------------------------------------------------------

    def _operation(self) -> Operation:
        names: list[str] = []
        if self._token.kind == "value":
            names = self._result_names()
        name = self._next().text.strip('"')
        if name not in _OWN_SYNTAX:
            return self._common(name, names)
        if name == "arith.constant":
            return self._constant(names[0])
        if name == "scf.for":
            return self._for(names)
        if name == "scf.if":
            return self._if(names)
        if name == "scf.while":
            return self._while(names)
        self._expect(":")
        return Operation(name, results=(self._define(names[0], self._type()),))

    def _result_names(self) -> list[str]:
        names: list[str] = []
        while not self._accept("="):
            name = self._next().text
            if self._accept(":"):
                names += [f"{name}#{position}" for position in range(int(self._next().text))]
            else:
                names.append(name)
            self._accept(",")
        return names

    def _results(self, names: list[str], types: list[Type]) -> tuple[Value, ...]:
        if len(names) > len(types):
            types = types * len(names)
        return tuple(self._define(name, value_type) for name, value_type in zip(names, types, strict=False))

    def _constant(self, name: str) -> Operation:
        token = self._next()
        value_type = Type("i1") if token.text in {"true", "false"} else Type("index")
        if self._accept(":"):
            value_type = self._type()
        read = dense_of if token.kind == "dense" else number_of
        value = read(token.text, value_type.element)
        return Operation("arith.constant", results=(self._define(name, value_type),), attributes={"value": value})

    def _for(self, names: list[str]) -> Operation:
        keywords = ("unsigned",) if self._accept("unsigned") else ()
        induction = self._next().text
        bounds: list[Value] = []
        for word in ("=", "to", "step"):
            self._expect(word)
            bounds.append(self._value())
        carried: list[str] = []
        initial: list[Value] = []
        types: list[Type] = []
        if self._accept("iter_args"):
            carried, initial = self._assignments()
            self._expect("->")
            types = self._types()
        counter = Type("index")
        if self._accept(":"):
            counter = self._type()
        arguments = [self._define(induction, counter)]
        arguments += [self._define(name, value_type) for name, value_type in zip(carried, types, strict=True)]
        region = self._structured(tuple(arguments))
        attributes = self._dictionary("}") if self._accept("{") else {}
        results = self._results(names, types)
        return Operation("scf.for", (*bounds, *initial), results, attributes, keywords, (region,))

    def _if(self, names: list[str]) -> Operation:
        condition = self._value()
        types = self._types() if self._accept("->") else []
        regions = [self._structured()]
        if self._accept("else"):
            regions.append(self._structured())
        attributes = self._dictionary("}") if self._accept("{") else {}
        results = self._results(names, types)
        return Operation("scf.if", (condition,), results, attributes, regions=tuple(regions))

    def _while(self, names: list[str]) -> Operation:
        carried, initial = self._assignments()
        self._expect(":")
        before_types = self._types()
        self._expect("->")
        types = self._types()
        arguments = tuple(self._define(name, kind) for name, kind in zip(carried, before_types, strict=True))
        condition = self._structured(arguments)
        self._expect("do")
        body = self._structured()
        attributes = self._dictionary("}") if self._accept("{") else {}
        results = self._results(names, types)
        return Operation("scf.while", tuple(initial), results, attributes, regions=(condition, body))

    def _common(self, name: str, names: list[str]) -> Operation:
        """Operands, words, attributes, regions and types in the order in which they come, to the line's end."""
        reader = _CommonReader()
        line = self._tokens[self._position - 1].line
        while self._token.line == line and self._token.text != "}":
            line = self._common_item(reader)
        types = reader.result_types(name)
        results = self._results(names, types)
        operands = tuple(reader.operands)
        regions = tuple(reader.regions)
        return Operation(
            name, operands, results, reader.attributes, tuple(reader.keywords), regions, tuple(reader.successors)
        )

    def _common_item(self, reader: _CommonReader) -> int:
        """Read one item; returns the line that the operation has reached."""
        token = self._token
        if token.kind == "value":
            reader.operands.append(self._value())
        elif token.kind == "label":
            reader.successors.append(self._successor())
        elif token.kind == "type" or (reader.typed and token.kind == "word" and token.text != "to"):
            reader.add_type(self._type())
        elif token.text == "(" and self._tokens[self._position + 1].text == "{":
            self._next()
            while not self._accept(")"):
                reader.regions.append(self._region())
                self._accept(",")
        elif token.text == "{":
            self._next()
            reader.attributes.update(self._dictionary("}"))
        elif token.kind == "word" and self._tokens[self._position + 1].text == "=":
            key = self._next().text
            self._next()
            reader.attributes[key] = self._attribute()
        else:
            reader.add_mark(self._next())
        return self._tokens[self._position - 1].line

    def _successor(self) -> Successor:
        label = self._next().text
        arguments: list[Value] = []
        if self._accept("("):
            while not self._accept(")"):
                if self._token.kind == "value":
                    arguments.append(self._value())
                else:
                    self._next()
        return Successor(label, tuple(arguments))

    def _dictionary(self, closing: str) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        while not self._accept(closing):
            key = self._next().text
            found[key] = self._attribute() if self._accept("=") else True
            if self._accept(":"):
                self._next()
            self._accept(",")
        return found

    def _attribute(self) -> Attribute:
        token = self._next()
        value: Attribute = token.text.strip('"')
        if token.kind == "number":
            value = number_of(token.text, "f64" if "." in token.text else "i64")
        elif token.text in {"true", "false"}:
            value = token.text == "true"
        elif token.kind == "array":
            value = array_of(token.text)
        return value


class _CommonReader:
    """What has been read of an operation that follows the common pattern."""

    def __init__(self) -> None:
        self.operands: list[Value] = []
        self.keywords: list[str] = []
        self.attributes: dict[str, Attribute] = {}
        self.regions: list[Region] = []
        self.successors: list[Successor] = []
        self.typed = False
        self._arrow = False
        self._before: list[Type] = []
        self._after: list[Type] = []

    def add_type(self, value_type: Type) -> None:
        (self._after if self._arrow else self._before).append(value_type)

    def add_mark(self, token: Token) -> None:
        if token.text == ":":
            self.typed = True
        elif token.kind == "arrow" or (self.typed and token.text == "to"):
            self._arrow = True
        elif token.kind == "word":
            self.keywords.append(token.text)
        elif token.kind == "string":
            self.attributes["text"] = token.text[1:-1]
        elif token.kind == "symbol":
            self.attributes["symbol"] = token.text

    def result_types(self, name: str) -> list[Type]:
        if self._arrow:
            return self._after
        if not self._before:
            return []
        first = self._before[0]
        element_of = {"arith.cmpi": "i1", "arith.cmpf": "i1", "tt.load": first.element}
        if name in element_of:
            return [first.of(element_of[name])]
        if name == "tt.unsplat":
            return [Type(first.element, pointer=first.pointer)]
        return [self._before[-1] if name == "arith.select" else first]
