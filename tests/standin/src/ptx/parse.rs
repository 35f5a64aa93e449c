//! Tokens to modules: kernels as lists of statements. Knows the grammar, and the syntax of
//! operands, but no instruction.

use super::lex::{Placed, Token, tokens};
use super::{Parsed, PtxError, at};

/// A module as written.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// 10 major + minor.
    pub(crate) version: u32,
    /// The number of `.target sm_N`.
    pub(crate) target: u32,
    pub(crate) entries: Vec<Entry>,
}

/// A parameter, or a variable of shared memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) align: usize,
    pub(crate) bytes: usize,
}

/// A kernel as written.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) params: Vec<Variable>,
    pub(crate) body: Body,
    pub(crate) max_threads: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Body {
    /// Names with their counts; `name<n>` stands for n registers.
    pub(crate) registers: Vec<(String, Option<u64>)>,
    pub(crate) shared: Vec<Variable>,
    pub(crate) statements: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) enum Statement {
    Label(String),
    Instruction(Instruction),
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) line: usize,
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) name: String,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Name(String),
    Number(u64),
    /// `[base+offset]`.
    Address(String, i64),
    /// `{a, b}`.
    Vector(Vec<Self>),
}

struct Parser {
    tokens: Vec<Placed>,
    here: usize,
}

/// Parses a module.
pub(crate) fn parse(text: &str) -> Parsed<Module> {
    let mut parser = Parser { tokens: tokens(text)?, here: 0 };
    let mut module = Module::default();
    while let Some(token) = parser.next() {
        let line = parser.line();
        match token {
            Token::Word(word) => parser.top(&word, &mut module)?,
            Token::Mark(';') => {}
            other => return at(line, format!("unexpected {other:?}")),
        }
    }
    if module.version == 0 { Err(PtxError::NotPtx) } else { Ok(module) }
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.here)?.0.clone();
        self.here += 1;
        Some(token)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.here).map(|placed| &placed.0)
    }

    /// The line of the token that was taken last.
    fn line(&self) -> usize {
        self.tokens.get(self.here.saturating_sub(1)).map_or(0, |placed| placed.1)
    }

    fn takes(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(&Token::Mark(mark));
        self.here += usize::from(found);
        found
    }

    fn wants(&mut self, mark: char) -> Parsed<()> {
        if self.takes(mark) { Ok(()) } else { self.not_expected(&format!("`{mark}`")) }
    }

    fn not_expected<T>(&mut self, wanted: &str) -> Parsed<T> {
        let found = self.next();
        at(self.line(), format!("want {wanted}, found {found:?}"))
    }

    fn word(&mut self) -> Parsed<String> {
        let Some(Token::Word(word)) = self.peek().cloned() else {
            return self.not_expected("a word");
        };
        self.here += 1;
        Ok(word)
    }

    fn number(&mut self) -> Parsed<u64> {
        let negative = self.takes('-');
        match self.peek() {
            Some(&Token::Number(number)) => {
                self.here += 1;
                Ok(if negative { number.wrapping_neg() } else { number })
            }
            _ => self.not_expected("a number"),
        }
    }

    fn top(&mut self, word: &str, module: &mut Module) -> Parsed<()> {
        match word {
            ".version" => {
                let major = self.number()?;
                let minor = self.word()?;
                let minor = minor.trim_start_matches('.').parse::<u64>();
                let line = self.line();
                let Ok(minor) = minor else { return at(line, "`.version` wants major.minor") };
                module.version = u32::try_from(major * 10 + minor).unwrap_or(u32::MAX);
                Ok(())
            }
            ".target" => {
                let word = self.word()?;
                let digits = word.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
                module.target = digits.parse().unwrap_or(u32::MAX);
                while self.takes(',') {
                    self.word()?;
                }
                Ok(())
            }
            ".address_size" => self.number().map(drop),
            ".visible" => Ok(()),
            ".entry" => {
                let entry = self.entry()?;
                module.entries.push(entry);
                Ok(())
            }
            _ => at(self.line(), format!("unknown directive `{word}`")),
        }
    }

    fn entry(&mut self) -> Parsed<Entry> {
        let mut entry = Entry { name: self.word()?, ..Entry::default() };
        if self.takes('(') {
            while !self.takes(')') {
                let space = self.word()?;
                if space != ".param" {
                    return at(self.line(), format!("unknown space `{space}`"));
                }
                entry.params.push(self.variable()?);
                self.takes(',');
            }
        }
        while !self.takes('{') {
            match self.word()?.as_str() {
                ".maxntid" => {
                    let mut threads = self.number()?;
                    while self.takes(',') {
                        threads *= self.number()?;
                    }
                    entry.max_threads = u32::try_from(threads).ok();
                }
                ".minnctapersm" => drop(self.number()?),
                word => return at(self.line(), format!("unknown directive `{word}`")),
            }
        }
        self.body(&mut entry.body)?;
        Ok(entry)
    }

    /// After the space: `.align 4 .b8 name[1024]`.
    fn variable(&mut self) -> Parsed<Variable> {
        let mut variable = Variable::default();
        let mut width = 0;
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => variable.align = self.number()? as usize,
                _ if word.starts_with('.') => match bytes_of(&word) {
                    Some(bytes) => width = bytes,
                    None => return at(self.line(), format!("unknown type `{word}`")),
                },
                _ => {
                    variable.name = word;
                    break;
                }
            }
        }
        variable.bytes = width;
        while self.takes('[') {
            variable.bytes = variable.bytes.saturating_mul(self.number()? as usize);
            self.wants(']')?;
        }
        variable.align = variable.align.max(width).max(1);
        Ok(variable)
    }

    fn body(&mut self, body: &mut Body) -> Parsed<()> {
        loop {
            if self.takes('}') {
                return Ok(());
            } else if self.takes('{') {
                // An inner scope's registers are those of the same name outside.
                self.body(body)?;
            } else if self.takes('@') {
                let negated = self.takes('!');
                let predicate = self.word()?;
                let name = self.word()?;
                self.instruction(Some((predicate, negated)), name, body)?;
            } else {
                let word = self.word()?;
                self.statement(word, body)?;
            }
        }
    }

    fn statement(&mut self, word: String, body: &mut Body) -> Parsed<()> {
        match word.as_str() {
            ".reg" => self.registers(body),
            ".shared" => {
                let variable = self.variable()?;
                self.wants(';')?;
                body.shared.push(variable);
                Ok(())
            }
            ".pragma" => {
                self.word()?;
                self.wants(';')
            }
            _ if self.takes(':') => {
                body.statements.push(Statement::Label(word));
                Ok(())
            }
            _ if word.starts_with('.') => at(self.line(), format!("unknown directive `{word}`")),
            _ => self.instruction(None, word, body),
        }
    }

    fn registers(&mut self, body: &mut Body) -> Parsed<()> {
        let kind = self.word()?;
        if kind != ".pred" && bytes_of(&kind).is_none() {
            return at(self.line(), format!("unknown type `{kind}`"));
        }
        loop {
            let name = self.word()?;
            let count = if self.takes('<') {
                let count = self.number()?;
                self.wants('>')?;
                Some(count)
            } else {
                None
            };
            body.registers.push((name, count));
            if !self.takes(',') {
                return self.wants(';');
            }
        }
    }

    fn instruction(
        &mut self,
        guard: Option<(String, bool)>,
        name: String,
        body: &mut Body,
    ) -> Parsed<()> {
        let line = self.line();
        let mut operands = Vec::new();
        while !self.takes(';') {
            operands.push(self.operand()?);
            self.takes(',');
        }
        let instruction = Instruction { line, guard, name, operands };
        body.statements.push(Statement::Instruction(instruction));
        Ok(())
    }

    fn operand(&mut self) -> Parsed<Operand> {
        if self.takes('[') {
            return self.address();
        }
        if self.takes('{') {
            let mut parts = Vec::new();
            while !self.takes('}') {
                parts.push(self.operand()?);
                self.takes(',');
            }
            return Ok(Operand::Vector(parts));
        }
        if !matches!(self.peek(), Some(Token::Word(_))) {
            return Ok(Operand::Number(self.number()?));
        }
        self.word().map(Operand::Name)
    }

    fn address(&mut self) -> Parsed<Operand> {
        let base = self.word()?;
        let signed = self.takes('+') || self.peek() == Some(&Token::Mark('-'));
        let offset = if signed { self.number()? as i64 } else { 0 };
        self.wants(']')?;
        Ok(Operand::Address(base, offset))
    }
}

/// The bytes of a type such as `.b32`.
fn bytes_of(word: &str) -> Option<usize> {
    let digits = word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?;
    match digits {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        _ => None,
    }
}
