import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { type ApiError, api, ask } from './client';
import type { components } from './schema';

export type Template = components['schemas']['Template'];
export type TemplateSpec = components['schemas']['TemplateSpec'];

export const useTemplates = () =>
  useQuery({ queryKey: ['templates'], queryFn: () => ask(api.GET('/api/v1/templates')) });

/** Lists of work that are kept for batches. */
export const useLists = (wanted = true) =>
  useQuery({
    queryKey: ['batches'],
    queryFn: () => ask(api.GET('/api/v1/batches')),
    enabled: wanted,
  });

/** A change of what is listed under a name; the list is read again. */
export function useChange<Input, Output>(noun: string, does: (input: Input) => Promise<Output>) {
  const queries = useQueryClient();
  return useMutation<Output, ApiError, Input>({
    mutationFn: does,
    onSuccess: () => queries.invalidateQueries({ queryKey: [noun] }),
  });
}

const named = (template: string) => ({ params: { path: { template } } });

/** Keep a template, in place of the one that was called so. */
export const keepTemplate = (spec: TemplateSpec, before: string | null): Promise<Template> =>
  before === null
    ? ask(api.POST('/api/v1/templates', { body: spec }))
    : ask(api.PUT('/api/v1/templates/{template}', { ...named(before), body: spec }));

export const deleteTemplate = (name: string): Promise<Template> =>
  ask(api.DELETE('/api/v1/templates/{template}', named(name)));

export type Project = components['schemas']['Project'];

export const useProjects = () =>
  useQuery({ queryKey: ['projects'], queryFn: () => ask(api.GET('/api/v1/projects')) });

export const createProject = (name: string): Promise<Project> =>
  ask(api.POST('/api/v1/projects', { body: { name } }));

/** Rename a project, put it away or take it out again. */
export const changeProject = (change: components['schemas']['ProjectEdit']): Promise<Project> =>
  ask(api.PUT('/api/v1/projects', { body: change }));

/** Delete a project to which nothing belongs; the daemon refuses any other. */
export const deleteProject = (name: string): Promise<Project> =>
  ask(api.DELETE('/api/v1/projects', { params: { query: { name } } }));

export type Learning = components['schemas']['Learning'];
export type LearningStatus = Learning['status'];
export type LearningEdit = components['schemas']['LearningEdit'];

export const useLearnings = (status: LearningStatus, query: string, project?: string) =>
  useQuery({
    queryKey: ['learnings', status, query, project ?? null],
    queryFn: () =>
      ask(
        api.GET('/api/v1/learnings', {
          params: { query: { status, query: query || undefined, project, limit: 200 } },
        }),
      ),
  });

const ofLearning = (learning_id: string) => ({ params: { path: { learning_id } } });

/** Change a learning; it is kept by that, whatever was judged. */
export const keepLearning = ({ id, ...body }: LearningEdit & { id: string }): Promise<Learning> =>
  ask(api.PUT('/api/v1/learnings/{learning_id}', { ...ofLearning(id), body }));

export const addLearning = (body: components['schemas']['LearningSpec']): Promise<Learning> =>
  ask(api.POST('/api/v1/learnings', { body }));

export const deleteLearning = (id: string): Promise<Learning> =>
  ask(api.DELETE('/api/v1/learnings/{learning_id}', ofLearning(id)));

export type Note = components['schemas']['Note'];

export const useNotes = (scope: string) =>
  useQuery({
    queryKey: ['notes', scope],
    queryFn: () => ask(api.GET('/api/v1/notes', { params: { query: { scope, limit: 1000 } } })),
    retry: false,
  });

export const useNote = (scope: string, key: string) =>
  useQuery({
    queryKey: ['notes', scope, key],
    queryFn: () => ask(api.GET('/api/v1/notes/entry', { params: { query: { scope, key } } })),
    enabled: key !== '',
    retry: false,
  });

/** Write a note, if nobody else has written it since. */
export const writeNote = (body: components['schemas']['NoteSpec']): Promise<Note> =>
  ask(api.POST('/api/v1/notes', { body }));

export const deleteNote = (query: { scope: string; key: string; expected_version: number }): Promise<Note> =>
  ask(api.DELETE('/api/v1/notes', { params: { query } }));
