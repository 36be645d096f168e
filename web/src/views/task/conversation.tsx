import { useWindowVirtualizer } from '@tanstack/react-virtual';
import { memo, type ReactNode, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';
import type { PersonMessage, Task } from '../../api/client';
import { useMessages } from '../../api/queries';
import { beginsAttempt, type Line, useOutline, useTranscript } from '../../api/transcript';
import { clock, counted, visible } from '../../model/format';
import type { State } from '../../model/work';
import { hasEnded } from '../../model/work';
import { Button, Choices, Loading } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Prose } from '../../parts/prose';
import { Moment, Said, useNow } from '../../parts/text';
import { useKeys } from '../../shell/keys';
import { type Block, blocksOf, isBad, type ToolUse } from './blocks';
import { Checked } from './checks';
import { Composer } from './composer';
import { lineText, oneLine } from './line_text';
import { Ruler } from './ruler';

type Distance = 'outline' | 'conversation' | 'everything';

const NEAR_PX = 120;

/** The conversation of a task, at one of three levels of detail. */
export function Conversation({ task }: { task: Task }) {
  const active = !hasEnded(task) && task.status === 'running';
  const [distance, choose] = useState<Distance>('conversation');
  const outlined = distance === 'outline';
  const told = useTranscript(task.id, active);
  const outline = useOutline(task.id, active, outlined);
  const { lines, done } = outlined ? outline : told;
  const said = useMessages(task.id);
  const states = new Map(said.map(({ id, state }) => [id, state]));
  const unbegun = said.filter((message) => message.attempt === null);
  const blocks = useMemo(() => blocksOf(lines, distance === 'everything'), [lines, distance]);
  // What begins with an attempt is read from there: only what is cut in the middle of one is long.
  const cut = told.more && !beginsAttempt(lines[0]);
  const [follows, toEnd] = useFollow(blocks, active, cut && !outlined);
  const below = useBelow(blocks, follows);
  const [goal, setGoal] = useState<string | null>(null);
  const go = async (place: string) => {
    await told.reach(place);
    setGoal(place);
    choose('conversation');
  };
  return (
    <>
      <div className="tbar">
        <Choices
          label="How much"
          value={distance}
          choose={(value) => {
            choose(value);
            // A table of contents is read from its beginning.
            if (value === 'outline') window.scrollTo({ top: 0 });
          }}
          of={[
            { value: 'outline', label: 'Outline' },
            { value: 'conversation', label: 'Conversation' },
            { value: 'everything', label: 'Everything' },
          ]}
        />
        <span className="end">
          {!outlined && blocks.some(isMessage) && (
            <span className="desk">
              <kbd>n</kbd> next message
            </span>
          )}
          {!outlined && blocks.some(isBad) && (
            <span className="desk">
              <kbd>e</kbd> next error
            </span>
          )}
          {active && (
            <span className="split c-go">
              <Glyph state="run" />
              {follows ? 'follows new lines' : 'new lines below'}
            </span>
          )}
        </span>
      </div>
      <div className="you-said">
        <div className="by">
          You, <Moment at={task.created_at} />
        </div>
        <Prose>{task.prompt}</Prose>
      </div>
      {lines.length === 0 && !done && task.attempts.length > 0 && <Loading lines={5} />}
      {task.attempts.length === 0 && <p className="faint mt-4">No agent has started yet.</p>}
      {!outlined && told.more && lines.length > 0 && <Earlier read={told.earlier} />}
      <Blocks
        key={outlined ? 'outline' : 'all'}
        blocks={blocks}
        estimate={outlined ? 28 : 72}
        goal={outlined ? null : blockWith(blocks, lines, goal)}
        reached={() => setGoal(null)}
        ruled={!outlined}
      >
        {(block) =>
          outlined ? (
            <Summary block={block} go={() => go(placeOf(block))} />
          ) : (
            <One
              block={block}
              task={task}
              underWay={active && block === blocks.at(-1)}
              state={block.kind === 'person' ? states.get(block.line.id ?? '') : undefined}
            />
          )
        }
      </Blocks>
      {unbegun.map((message) => (
        <YouSaid key={message.id} {...message} />
      ))}
      {!outlined && active && !follows && (
        <div className="below">
          <Button small onClick={toEnd}>
            <Icon name="down" />
            {below > 0 ? `${below} new below` : 'To the end'}
          </Button>
        </div>
      )}
      <Composer task={task} />
    </>
  );
}

/** Loads earlier lines when the person scrolls up to it. */
function Earlier({ read }: { read: () => Promise<void> }) {
  const row = useRef<HTMLDivElement>(null);
  const last = useRef(window.scrollY);
  useEffect(() => {
    const look = () => {
      const up = window.scrollY < last.current;
      last.current = window.scrollY;
      const box = row.current?.getBoundingClientRect();
      if (up && box && box.bottom > -NEAR_PX && box.top < window.innerHeight) read();
    };
    window.addEventListener('scroll', look, { passive: true });
    return () => window.removeEventListener('scroll', look);
  });
  return (
    <div ref={row} className="between mt-4">
      Earlier lines are not loaded.
      <Button small look="quiet" onClick={read}>
        Load
      </Button>
    </div>
  );
}

/** The end of the conversation on the page: narrow windows show other things below it. */
function bottom(): number {
  const body = document.querySelector('.cols > .body')?.getBoundingClientRect();
  const bar = document.querySelector<HTMLElement>('.tabbar')?.offsetHeight ?? 0;
  return (body?.bottom ?? 0) + window.scrollY + bar;
}

/** The lower edge of the header that stays in sight. */
const under = (): number => {
  const tabs = document.querySelector('.tabs')?.getBoundingClientRect();
  return tabs && tabs.top < 300 ? tabs.bottom + 8 : 8;
};

const isMessage = (block: Block): boolean => block.kind === 'text' || block.kind === 'result';

/** Stays at the end while it grows, unless the person has scrolled up; what is long and over opens there. */
function useFollow(blocks: Block[], active: boolean, long: boolean): [boolean, () => void] {
  const [shown, show] = useState(true);
  const follows = useRef(true);
  const last = useRef(0);
  const end = () => window.scrollTo({ top: bottom() - window.innerHeight });
  const stay = useRef(end);
  stay.current = () => {
    if (blocks.length > 0 && follows.current && (active || long)) end();
  };
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    const look = () => {
      const isUp = window.scrollY < last.current;
      last.current = window.scrollY;
      const isNear = window.innerHeight + window.scrollY > bottom() - NEAR_PX;
      follows.current = isNear || (follows.current && !isUp);
      show(follows.current);
    };
    window.addEventListener('scroll', look, { passive: true, signal });
    // What is shown for the first time turns out larger or smaller than was thought.
    const sizes = new ResizeObserver(() => stay.current());
    sizes.observe(document.body);
    signal.addEventListener('abort', () => sizes.disconnect());
    return () => ending.abort();
  }, []);
  useKeys({ G: end });
  useLayoutEffect(() => stay.current(), [blocks]);
  return [shown, end];
}

/** The number of new blocks since the person stopped following the end. */
function useBelow(blocks: Block[], follows: boolean): number {
  const last = useRef<string | undefined>(undefined);
  if (follows) last.current = blocks.at(-1)?.key;
  const at = blocks.findLastIndex(({ key }) => key === last.current);
  return follows || at < 0 ? 0 : blocks.length - 1 - at;
}

interface BlocksProps {
  blocks: Block[];
  estimate: number;
  /** Which of them is gone to, once. */
  goal: number | null;
  reached: () => void;
  /** Tells whether there is a ruler beside the blocks. */
  ruled: boolean;
  children: (block: Block) => ReactNode;
}

function Blocks({ blocks, estimate, goal, reached, ruled, children }: BlocksProps) {
  const list = useRef<HTMLDivElement>(null);
  const rows = useWindowVirtualizer({
    count: blocks.length,
    estimateSize: () => estimate,
    overscan: 12,
    scrollMargin: list.current?.offsetTop ?? 0,
    getItemKey: (index) => blocks[index]?.key ?? index,
  });
  const last = blocks.at(-1)?.key;
  const size = rows.getTotalSize();
  const before = useRef({ last, size, count: blocks.length });
  useLayoutEffect(() => {
    // What was put in front does not move what is being read.
    const { current } = before;
    if (current.last === last && blocks.length > current.count) window.scrollBy(0, size - current.size);
    before.current = { last, size, count: blocks.length };
  });
  const gone = useRef({ index: -1, at: -1 });
  const go = (index: number) => {
    rows.setOptions({ ...rows.options, scrollPaddingStart: under() });
    rows.scrollToIndex(index, { align: 'start' });
    requestAnimationFrame(() => {
      gone.current = { index, at: window.scrollY };
    });
  };
  useEffect(() => {
    if (goal === null) return;
    go(goal);
    reached();
  }, [goal]);
  const places = rows.measurementsCache;
  const top = rows.options.scrollMargin;
  const next = (wanted: (block: Block) => boolean) => {
    // At the end of the page what was gone to is not at the top.
    const stayed = Math.abs(gone.current.at - window.scrollY) < 3;
    const from = window.scrollY + under() + 2;
    const index = stayed ? gone.current.index : places.findLastIndex(({ start }) => start <= from);
    const found = blocks.findIndex((block, at) => at > index && wanted(block));
    if (found >= 0) go(found);
  };
  useKeys(ruled ? { n: () => next(isMessage), e: () => next(isBad) } : {});
  const seen = Math.max(0, (rows.scrollOffset ?? 0) - top);
  const high = window.innerHeight;
  const tall = ruled && size > 1.5 * high;
  const shown = (
    <div ref={list} className="tx virtual" style={{ height: size }}>
      {rows.getVirtualItems().map(({ index, key, start }) => {
        const block = blocks[index];
        return (
          <div
            key={key}
            data-index={index}
            ref={rows.measureElement}
            style={{ transform: `translateY(${start - rows.options.scrollMargin}px)` }}
          >
            {block && children(block)}
          </div>
        );
      })}
    </div>
  );
  return (
    <div className={tall ? 'withruler' : ''}>
      {shown}
      {tall && (
        <Ruler
          blocks={blocks}
          places={places}
          top={top}
          total={size}
          from={Math.min(seen, size)}
          to={Math.min(seen + high, size)}
          go={(part) => window.scrollTo({ top: top + part * size - high / 2 })}
        />
      )}
    </div>
  );
}

/** The place of a block's first line. */
const placeOf = (block: Block): string => block.key.split(' ')[0] ?? '';

/** The last block that begins at or before a place. */
function blockWith(blocks: Block[], lines: Line[], place: string | null): number | null {
  if (place === null) return null;
  const order = new Map(lines.map((line, number) => [line.place, number]));
  const goal = order.get(place) ?? 0;
  return Math.max(
    0,
    blocks.findLastIndex((block) => (order.get(placeOf(block)) ?? 0) <= goal),
  );
}

const WHAT: Record<PersonMessage['kind'], string> = {
  hint: 'You',
  answer: 'You answered',
  message: 'Your message',
};
const STATES: Record<PersonMessage['state'], string> = {
  waiting: 'not delivered yet',
  delivered: 'read',
  refused: 'not delivered: the task has ended',
};

interface YouSaidProps {
  kind: PersonMessage['kind'];
  text: string;
  question?: string | null;
  at: string | undefined;
  state: PersonMessage['state'];
}

/** A message of a person with its delivery state. */
const YouSaid = ({ kind, text, question, at, state }: YouSaidProps) => (
  <div className="you-said">
    <div className="by">
      <span>
        {WHAT[kind]}
        {at && (
          <>
            , <Moment at={at} />
          </>
        )}
      </span>
      <span className={state === 'delivered' ? '' : 'c-you'}>{STATES[state]}</span>
    </div>
    {question && <Said className="dim small break">{question}</Said>}
    <Prose>{text}</Prose>
  </div>
);

const SUMMARIES: Record<Block['kind'], (block: Block) => string> = {
  attempt: (block) => (block.kind === 'attempt' ? `Attempt ${block.number}, ${block.agent}` : ''),
  person: (block) =>
    block.kind === 'person' ? `${WHAT[block.line.message ?? 'hint']}: ${oneLine(block.line.text ?? '')}` : '',
  text: (block) => (block.kind === 'text' ? oneLine(block.text) : ''),
  tools: (block) =>
    block.kind === 'tools'
      ? `${block.uses[0]?.name} ${lineText(block.uses[0]?.input ?? { place: '', kind: '' })}`
      : '',
  checks: (block) =>
    block.kind === 'checks'
      ? `Checks: ${block.checks.filter((check) => check.passed).length} of ${block.checks.length} passed`
      : '',
  result: (block) => (block.kind === 'result' ? `Agent: ${oneLine(block.text)}` : ''),
  note: (block) => (block.kind === 'note' ? `${block.about}: ${oneLine(block.text)}` : ''),
};

const Summary = ({ block, go }: { block: Block; go: () => void }) => (
  <button
    type="button"
    className={`outlined cut small ${block.kind === 'attempt' ? 'strong' : 'dim'}`}
    onClick={go}
  >
    <Said>{SUMMARIES[block.kind](block)}</Said>
  </button>
);

interface OneProps {
  block: Block;
  task: Task;
  underWay: boolean;
  /** Of what a person said, what has become of it since it was read here. */
  state: PersonMessage['state'] | undefined;
}

const One = memo(({ block, task, underWay, state }: OneProps) => {
  switch (block.kind) {
    case 'person': {
      const { message = 'hint', text = '', question, at } = block.line;
      const now = state ?? block.line.state ?? 'delivered';
      return <YouSaid kind={message} text={text} question={question} at={at} state={now} />;
    }
    case 'attempt':
      return <Divider block={block} task={task} />;
    case 'text':
      return (
        <div className="said-by">
          <Prose>{block.text}</Prose>
        </div>
      );
    case 'tools':
      return <Tools uses={block.uses} underWay={underWay} />;
    case 'checks':
      return (
        <Checked
          checks={block.checks}
          running={block.running ? { name: block.running, command: block.running, started_at: '' } : null}
        />
      );
    case 'result':
      return (
        <div className="claim">
          <Glyph state={block.failed ? 'bad' : 'said'} />
          <div>
            <div className="faint small">
              {block.failed ? 'Agent reported failure' : 'Agent reported success'}
            </div>
            <Prose>{block.text}</Prose>
          </div>
        </div>
      );
    case 'note':
      return (
        <div className="note">
          <Glyph state={noteState(block.bad, block.about)} />
          <Said className="break">{block.text}</Said>
        </div>
      );
  }
});

function Divider({ block, task }: { block: Extract<Block, { kind: 'attempt' }>; task: Task }) {
  const attempt = task.attempts.find(({ number }) => number === block.number);
  return (
    <div className="divider">
      <b>Attempt {block.number}</b>
      <span>{[block.agent, attempt?.model].filter(Boolean).join(', ')}</span>
      {attempt && (
        <span className="faint">
          <Moment at={attempt.started_at} />
          {attempt.ended_at && (
            <>
              {' to '}
              <Moment at={attempt.ended_at} />
            </>
          )}
        </span>
      )}
      {block.after && <Said className="faint cut">{block.after}</Said>}
    </div>
  );
}

function Tools({ uses, underWay }: { uses: ToolUse[]; underWay: boolean }) {
  const [first] = uses;
  const runs = (use: ToolUse) => underWay && use === uses.at(-1) && use.result === null;
  if (!first) return null;
  if (uses.length === 1) return <Tool use={first} runs={runs(first)} />;
  return (
    <details className="tool" open={uses.some(runs)}>
      <summary>
        <Icon name="right" className="chev" />
        <span className="nm">{first.name}</span>
        <span className="arg cut">{counted(uses.length, 'time')}</span>
      </summary>
      <div className="kids">
        {uses.map((use, place) => (
          <Tool key={place} use={use} runs={runs(use)} />
        ))}
      </div>
    </details>
  );
}

const HEAD = 60;
const TAIL = 40;

/** The duration of a running tool call; at least the time since the page was opened. */
function noteState(isBad: boolean, about: string): State {
  if (isBad) return 'bad';
  return about === 'question' ? 'you' : 'todo';
}

/** The duration of a tool call as text; a lower bound if its start is unknown. */
function durationSoFar(seconds: number, isStartKnown: boolean): string {
  if (isStartKnown) return `${clock(seconds)} so far`;
  return seconds < 1 ? 'running' : `more than ${clock(seconds)}`;
}

function SoFar({ came }: { came: number | undefined }) {
  const now = useNow();
  const [seen] = useState(() => Date.now());
  const seconds = Math.max(0, now - (came ?? seen)) / 1000;
  return (
    <>
      {durationSoFar(seconds, came !== undefined)}
      <Glyph state="run" />
    </>
  );
}

function Tool({ use, runs }: { use: ToolUse; runs: boolean }) {
  const text = use.result?.text ?? '';
  const lines = text.split('\n');
  const cut = lines.length > HEAD + TAIL;
  return (
    <details className="tool" open={runs}>
      <summary>
        <Icon name="right" className="chev" />
        <span className="nm">{use.name}</span>
        <Said className="arg cut">{lineText(use.input)}</Said>
        <span className="res">
          {runs && <SoFar came={use.input.came} />}
          {!runs && use.result && counted(lines.length, 'line')}
        </span>
      </summary>
      <div className="inner">
        {Object.entries(use.input.data ?? {}).map(([name, value]) => (
          <pre key={name} className="term">
            <b>{name}</b> {visible(typeof value === 'string' ? value : JSON.stringify(value))}
          </pre>
        ))}
        {text && <pre className="term">{visible(cut ? lines.slice(0, HEAD).join('\n') : text)}</pre>}
        {cut && (
          <>
            <div className="between">
              {counted(lines.length - HEAD - TAIL, 'line')} in between; Output has them all.
            </div>
            <pre className="term">{visible(lines.slice(-TAIL).join('\n'))}</pre>
          </>
        )}
      </div>
    </details>
  );
}
