import { useNavigate, useSearch } from '@tanstack/react-router';
import { useVirtualizer } from '@tanstack/react-virtual';
import { memo, useCallback, useEffect, useMemo, useRef, useState } from 'react';
import { isRun, type Work } from '../../api/client';
import { useInside, useTotal, useWork } from '../../api/queries';
import { lazyPart } from '../../lazy';
import { counted, money, nameOfPath, visible } from '../../model/format';
import { costOf, hasEnded, named, progressOf, repositoryOf, stateOf, whoOf } from '../../model/work';
import { useWidth } from '../../parts/chart';
import { Choices, Empty, Loading, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Proofs } from '../../parts/proofs';
import { Moment, Said } from '../../parts/text';
import { useKeys } from '../../shell/keys';
import { View as Frame } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { WorkLink } from '../work_link';
import { askedBy, type Token, tokensOf, wordsOf } from './filter';
import { Roll } from './roll';

const Timeline = lazyPart(async () => (await import('./timeline')).Timeline);
const WorkGraph = lazyPart(async () => (await import('./graph')).WorkGraph);

type Shape = 'list' | 'graph' | 'timeline';
/** The list has no name in the address. */
const shownAs = (view: Shape) => (view === 'list' ? undefined : view);

export function View() {
  const { q = '', view = 'list' } = useSearch({ from: '/inside/work' });
  const navigate = useNavigate();
  const [project] = useScope();
  const { filter, problem } = useMemo(() => askedBy(q), [q]);
  const list = useWork({ project, ...filter, nested: view !== 'list', limit: 200 });
  const shown = useMemo(() => list.data?.pages.flatMap((page) => page.work) ?? [], [list.data]);
  const total = useTotal({ project, ...filter, nested: view !== 'list' });
  const more = list.hasNextPage && !list.isFetchingNextPage ? list.fetchNextPage : null;
  return (
    <Frame title="Work">
      <div className="page wide">
        <div className="tbar">
          <FilterBox
            value={q}
            change={(next) =>
              navigate({ to: '/work', search: { view: shownAs(view), q: next || undefined }, replace: true })
            }
          />
          {total !== undefined && !problem && (
            <output className="faint small">{counted(total, 'item')}</output>
          )}
          <span className="end">
            <Choices
              label="View"
              value={view}
              choose={(next) => navigate({ to: '/work', search: { view: shownAs(next), q: q || undefined } })}
              of={[
                { value: 'list', label: 'List' },
                { value: 'graph', label: 'Graph' },
                { value: 'timeline', label: 'Timeline' },
              ]}
            />
          </span>
        </div>
        <Problem error={list.error} />
        {problem && <p className="note">{problem}</p>}
        {list.isPending && <Loading lines={10} />}
        {list.data && shown.length === 0 && (
          <Empty title={q ? 'No matching work' : 'No work yet'}>
            <p>
              {q
                ? 'Words match titles; state:failed, agent:claude, repo:name and since:7d narrow it.'
                : 'Press c to start something.'}
            </p>
          </Empty>
        )}
        {shown.length > 0 && view === 'list' && <List work={shown} more={more} />}
        {shown.length > 0 && view === 'graph' && <WorkGraph work={shown} more={list.hasNextPage} />}
        {shown.length > 0 && view === 'timeline' && (
          <Timeline work={shown} more={more} hasMore={list.hasNextPage} total={total} />
        )}
      </div>
    </Frame>
  );
}

/** Filters by field are chips; the input holds the other words. */
function FilterBox({ value, change }: { value: string; change: (value: string) => void }) {
  const [typed, setTyped] = useState(() => wordsOf(value));
  const [tokens, setTokens] = useState(() => tokensOf(value));
  const field = useRef<HTMLInputElement>(null);
  const told = useRef(value);
  useEffect(() => {
    if (value === told.current) return;
    told.current = value;
    setTyped(wordsOf(value));
    setTokens(tokensOf(value));
  }, [value]);
  useKeys({ f: () => field.current?.focus() });
  const put = (chips: Token[], words: string) => {
    setTyped(words);
    setTokens(chips);
    told.current = [...chips.map(({ text }) => text), words.trim()].filter(Boolean).join(' ');
    change(told.current);
  };
  return (
    <div className="searchbox grow max-w-160">
      <Icon name="search" />
      {tokens.map((token) => (
        <span className="token" key={token.text}>
          <b>{token.name}</b> {token.wanted}
          <button
            type="button"
            aria-label={`Without ${token.text}`}
            onClick={() =>
              put(
                tokens.filter((other) => other !== token),
                typed,
              )
            }
          >
            <Icon name="close" />
          </button>
        </span>
      ))}
      <input
        ref={field}
        aria-label="Filter"
        placeholder={
          tokens.length > 0
            ? ''
            : 'Filter: words, state:failed, repo:, agent:, kind:, project:, tag:, since:7d'
        }
        value={typed}
        onChange={(event) => {
          // A field becomes a chip when the word is over.
          const over = /^(.*\s)?(\w+:\S+)\s$/.exec(event.target.value);
          const made = over ? tokensOf(over[2] ?? '') : [];
          if (made.length > 0) put([...tokens, ...made], over?.[1] ?? '');
          else put(tokens, event.target.value);
        }}
        onKeyDown={(event) => {
          if (event.key === 'Enter') put([...tokens, ...tokensOf(typed)], wordsOf(typed));
          if (event.key === 'Backspace' && typed === '') put(tokens.slice(0, -1), '');
        }}
      />
    </div>
  );
}

const ROW = 37;
/** A row with the repository below the title, in a list that is too narrow for all columns. */
const TALL_ROW = 52;
const ALL_COLUMNS_WIDTH = 1030;

interface Shown {
  work: Work;
  depth: number;
}

/** Each piece of work, and below a run that is open what is inside it. */
function unfolded(work: Work[], inside: Map<string, Work[]>, depth = 0): Shown[] {
  return work.flatMap((item) => [
    { work: item, depth },
    ...unfolded(inside.get(item.id) ?? [], inside, depth + 1),
  ]);
}

function List({ work, more }: { work: Work[]; more: (() => void) | null }) {
  const box = useRef<HTMLDivElement>(null);
  const [panel, width] = useWidth(0);
  const isNarrow = width < ALL_COLUMNS_WIDTH;
  const navigate = useNavigate();
  const [at, setAt] = useState(-1);
  const [open, setOpen] = useState<string[]>([]);
  const inside = useInside(open);
  const shown = useMemo(
    () => (open.length > 0 ? unfolded(work, inside) : work.map((item) => ({ work: item, depth: 0 }))),
    [work, open, inside],
  );
  const rows = useVirtualizer({
    count: shown.length,
    getScrollElement: () => box.current,
    estimateSize: () => (isNarrow ? TALL_ROW : ROW),
    overscan: 8,
    useFlushSync: false,
    getItemKey: (index) => shown[index]?.work.id ?? index,
  });
  useEffect(() => rows.measure(), [isNarrow]);
  const items = rows.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (more && last > shown.length - 40) more();
  }, [more, last, shown.length]);
  const step = (by: number) => {
    const next = Math.max(0, Math.min(shown.length - 1, at + by));
    setAt(next);
    rows.scrollToIndex(next);
    // The row may have to be made first.
    requestAnimationFrame(() =>
      box.current?.querySelector<HTMLElement>(`[data-index="${next}"]`)?.focus({ preventScroll: true }),
    );
  };
  const titles = useRef(new Map<string, string>());
  for (const item of work) titles.current.set(item.id, item.title);
  const titleOf = useCallback((id: string) => titles.current.get(id), []);
  const fold = useCallback(
    (id: string) =>
      setOpen((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id])),
    [],
  );
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    Enter: () => {
      const chosen = shown[at]?.work;
      if (chosen) navigate({ to: `/${isRun(chosen) ? 'runs' : 'tasks'}/${chosen.id}` });
    },
  });
  return (
    <div
      ref={panel}
      className={`panel worklist ${isNarrow ? 'narrow' : ''}`}
      role="table"
      aria-label="Work"
      aria-rowcount={shown.length}
    >
      <div className="row head" role="row">
        {['Title', 'Kind', 'Agent', 'Evidence', 'Repository', 'Started', 'Cost'].map((name) => (
          <span key={name} role="columnheader">
            {name}
          </span>
        ))}
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <div ref={box} className="rowbox" role="rowgroup" tabIndex={0} style={{ height: rows.getTotalSize() }}>
        <div style={{ height: rows.getTotalSize() }}>
          {items.map(({ index, key, start }) => {
            const item = shown[index];
            return (
              item && (
                <div
                  key={key}
                  role="row"
                  aria-rowindex={index + 2}
                  data-index={index}
                  tabIndex={index === at ? 0 : -1}
                  className={`row ${index === at ? 'chosen' : ''}`}
                  style={{ transform: `translateY(${start}px)` }}
                >
                  <Row
                    work={item.work}
                    depth={item.depth}
                    titleOf={titleOf}
                    open={open.includes(item.work.id)}
                    fold={isRun(item.work) ? fold : undefined}
                  />
                </div>
              )
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** The current activity of open work, or what it waits for. */
function atWhat(work: Work, titleOf: RowProps['titleOf']): string {
  if (work.reason) return named(work.reason, titleOf);
  return isRun(work) ? progressOf(work) : work.status;
}

interface RowProps extends Shown {
  titleOf: (id: string) => string | undefined;
  open: boolean;
  fold?: (id: string) => void;
}

const Row = memo(({ work, depth, open, fold, titleOf }: RowProps) => {
  const cost = costOf(work);
  const proof = hasEnded(work) ? (
    <Proofs work={work} />
  ) : (
    <span className={`cut small ${stateOf(work) === 'you' ? 'c-you' : 'faint'}`}>
      {isRun(work) && <Roll run={work} />}
      <Said>{stateOf(work) === 'you' ? 'needs you' : atWhat(work, titleOf)}</Said>
    </span>
  );
  return (
    <>
      <span role="cell" className="t" style={{ paddingLeft: 18 * depth + (fold ? 0 : 14) }}>
        {fold && (
          <button
            type="button"
            className="unfold"
            aria-expanded={open}
            aria-label={`Parts of ${visible(work.title)}`}
            onClick={() => fold(work.id)}
          >
            <Icon name="right" className="chev" />
          </button>
        )}
        <Glyph state={stateOf(work)} />
        <span className="titled">
          <WorkLink work={work} className="cut">
            <Said>{work.title}</Said>
          </WorkLink>
          <span className="below-title faint small cut" title={repositoryOf(work)}>
            <Said>{nameOfPath(repositoryOf(work))}</Said>
          </span>
        </span>
      </span>
      <span role="cell" className="dim">
        {isRun(work) ? work.pattern : 'task'}
      </span>
      <span role="cell" className="dim cut">
        {whoOf(work)}
      </span>
      <span role="cell" className="cut">
        {proof}
      </span>
      <span role="cell" className="dim cut">
        <span title={repositoryOf(work)}>
          <Said>{nameOfPath(repositoryOf(work))}</Said>
        </span>
      </span>
      <span role="cell" className="faint num">
        <Moment at={work.started_at ?? work.created_at} />
      </span>
      <span role="cell" className="num">
        {cost === undefined ? '' : money(cost, '–')}
      </span>
    </>
  );
});
