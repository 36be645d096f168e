import { useNavigate, useParams } from '@tanstack/react-router';
import { type KeyboardEvent, useEffect, useMemo, useState } from 'react';
import { isRun, type Work } from '../api/client';
import { type Hit, useOne, usePatterns, useSearched, useWork } from '../api/queries';
import { shortId } from '../model/format';
import { canMerge, hasEnded, type State, stateOf } from '../model/work';
import { Dialog } from '../parts/dialog';
import { Glyph } from '../parts/glyph';
import { Icon, type IconName } from '../parts/icon';
import { Said } from '../parts/text';
import { press } from './keys';
import { PLACES } from './places';
import { switchTheme } from './preferences';

interface Goal {
  key: string;
  text: string;
  about: string;
  to: string;
  search?: Record<string, string>;
  /** The action of an entry that is not a place. */
  act?: () => unknown;
  icon?: IconName;
  state?: State;
}

const GOALS: Goal[] = PLACES.map(({ to, text, icon, keys }) => ({ key: to, text, about: keys, to, icon }));
const MOST = 16;

const act = (key: string, text: string, icon: IconName, does: () => unknown, about = ''): Goal => ({
  key,
  text,
  about,
  to: '',
  act: does,
  icon,
});

/** Actions on the work of the current view. */
function deedsOf(work: Work | undefined): Goal[] {
  if (!work) return [];
  const noun = isRun(work) ? 'run' : 'task';
  const deed = (key: string, verb: string, icon: IconName) =>
    act(`do-${key}`, `${verb} this ${noun}`, icon, () => press(key), key);
  return [
    ...(isRun(work) && work.status === 'running' ? [deed('p', 'Pause', 'pause')] : []),
    ...(isRun(work) && work.status === 'paused' ? [deed('r', 'Resume', 'now')] : []),
    ...(canMerge(work) ? [deed('m', 'Merge', 'merge')] : []),
    ...(hasEnded(work) ? [] : [deed('x', 'Cancel', 'close')]),
  ];
}

/** Entries for new work, by pattern. */
function useBeginnings(): Goal[] {
  const patterns = usePatterns().data ?? [];
  const names = ['task', ...patterns.filter(({ is_broken }) => !is_broken).map(({ name }) => name)];
  return names.map((pattern) => ({
    key: `new-${pattern}`,
    text: `New ${pattern.replaceAll('-', ' ')}`,
    about: 'begin',
    to: '/new',
    search: { pattern },
    icon: 'plus',
  }));
}

const goalOf = (work: Work): Goal => ({
  key: work.id,
  text: work.title,
  about: `${isRun(work) ? work.pattern : 'task'} ${shortId(work.id)}`,
  to: `/${isRun(work) ? 'runs' : 'tasks'}/${work.id}`,
  state: stateOf(work),
});

/** The view of a match; learnings and notes have none here. */
function placeOf(hit: Hit): string | null {
  if (hit.id.startsWith('run_')) return `/runs/${hit.id}`;
  if (!hit.id.startsWith('task_')) return null;
  return hit.kind === 'output' ? `/tasks/${hit.id}/output` : `/tasks/${hit.id}`;
}

const SHORTEST = 3;
const PAUSE_MS = 200;

/** Ended work that holds these words in its prompt, its result or its output. */
function useHits(typed: string): Goal[] {
  const [query, ask] = useState('');
  useEffect(() => {
    const timer = setTimeout(() => ask(typed.trim()), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const hits = useSearched(query, query.length >= SHORTEST).data?.hits ?? [];
  return hits.flatMap((hit, place) => {
    const to = placeOf(hit);
    const text = `${hit.title}: ${hit.text.replace(/\s+/g, ' ')}`;
    return to ? [{ key: `hit-${place}`, text, about: hit.kind, to, icon: 'search' as const }] : [];
  });
}

/** Goes to a place, to work by its title or id, or to what it says; and does what has no place. */
export function Palette({ close, showKeys }: { close: () => void; showKeys: () => void }) {
  const navigate = useNavigate();
  const { id = '' } = useParams({ strict: false });
  const isWork = /^(task|run)_/.test(id);
  const open = useOne(id, isWork).data;
  const beginnings = useBeginnings();
  const list = useWork({ nested: true, limit: 500 });
  const [typed, setTyped] = useState('');
  const [chosen, setChosen] = useState(0);
  const hits = useHits(typed);
  const goals = useMemo(() => {
    const all = [
      ...GOALS,
      ...deedsOf(open),
      act('theme', 'Change theme', 'theme', switchTheme),
      act('keys', 'Show keyboard shortcuts', 'help', showKeys, '?'),
      ...(list.data?.pages.flatMap((page) => page.work.map(goalOf)) ?? []),
      ...(typed.trim() ? beginnings : []),
    ];
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (goal: Goal) => {
      const text = `${goal.text} ${goal.key} ${goal.about}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const found = all.filter(fits).slice(0, MOST);
    const everything: Goal = {
      key: 'search',
      text: `Search everything for ${typed.trim()}`,
      about: 'search',
      to: '/search',
      search: { q: typed.trim() },
      icon: 'search',
    };
    return words.length > 0 ? [...found, ...hits, everything] : found;
  }, [list.data, typed, hits, open, beginnings, showKeys]);
  const go = (goal: Goal | undefined) => {
    if (!goal) return;
    close();
    if (goal.act) goal.act();
    else navigate({ to: goal.to, search: goal.search });
  };
  const keyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setChosen((chosen + step + goals.length) % Math.max(1, goals.length));
    } else if (event.key === 'Enter') {
      event.preventDefault();
      go(goals[chosen]);
    }
  };
  return (
    <Dialog title="Search or jump to…" close={close} className="palette">
      <div className="searchbox">
        <Icon name="search" />
        <input
          role="combobox"
          aria-expanded="true"
          aria-controls="goals"
          aria-activedescendant={goals[chosen] && `goal-${goals[chosen].key}`}
          aria-label="Search or jump to…"
          placeholder="A place, an action, or work by its title, its id or its words"
          value={typed}
          onChange={(event) => {
            setTyped(event.target.value);
            setChosen(0);
          }}
          onKeyDown={keyDown}
        />
        <kbd>esc</kbd>
      </div>
      <div id="goals" role="listbox" aria-label="Found">
        {goals.map((goal, place) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the field
          <div
            key={goal.key}
            id={`goal-${goal.key}`}
            role="option"
            tabIndex={-1}
            aria-selected={place === chosen}
            onClick={() => go(goal)}
          >
            {goal.state ? <Glyph state={goal.state} /> : <Icon name={goal.icon ?? 'work'} />}
            <span className="cut">
              <Said>{goal.text}</Said>
            </span>
            <span className="end">{goal.about}</span>
          </div>
        ))}
      </div>
    </Dialog>
  );
}
